// A pager on a disk for tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv_pager.h"

namespace rig {

// A directory on a disk: $KVP_TEST_DIR, or the first of a few that takes a spill file.
inline const char * disk() {
    static const std::string found = [] {
        const char * given = getenv("KVP_TEST_DIR");
        for (const char * dir : {given, ".", "/var/tmp", "/tmp"}) {
            kvp_config c{};
            c.page_cells = 16;
            c.ram_bytes  = 1;
            c.spill_dir  = dir;
            kvp_pager * p = nullptr;
            if (dir != nullptr && kvp_pager_create(&c, &p) == 0) {
                kvp_pager_free(p);
                return std::string(dir);
            }
        }
        ADD_FAILURE() << "no directory on a disk: set KVP_TEST_DIR";
        return std::string("/");
    }();
    return found.c_str();
}

// Counts and fails transfers, and tells where the last write went.
struct faults {
    std::atomic<long> count{0};
    std::atomic<long> fail_at{-1};
    std::atomic<int>  error{-EIO};
    std::atomic<uint64_t> written_at{0};
    std::function<void(long)> meanwhile;  // called with the number of each transfer
    static int hook(void * user, int write, uint64_t offset, size_t) {
        auto * f = static_cast<faults *>(user);
        if (write) {
            f->written_at = offset;
        }
        const long n = f->count++;
        if (f->meanwhile) {
            f->meanwhile(n);
        }
        return n == f->fail_at.load() ? f->error.load() : 0;
    }
};

struct options {
    uint32_t page_cells = 16;
    uint32_t frames     = 4;
    uint32_t layers     = 1;
    uint32_t groups     = 1;  // layer l is in group l % groups
    uint32_t n_cells    = 256;
    uint32_t kv_heads   = 2;
    uint32_t dk = 32, dv = 64;
    int      type_k = KVP_F16, type_v = KVP_F16;
    bool     spill  = true;
    uint64_t spill_pages = 0;
    uint32_t io_threads  = 0;
    int      direct = 1;
    faults * fault  = nullptr;
};

class pager {
  public:
    explicit pager(const options & o) : options_(o) {
        kvp_config c{};
        c.page_cells = o.page_cells;
        const size_t page = page_bytes(o);
        c.ram_bytes  = page * o.frames;
        c.spill_dir  = o.spill ? disk() : nullptr;
        c.spill_bytes = page * o.spill_pages;
        c.io_threads = o.io_threads;
        c.direct     = o.direct;
        if (o.fault != nullptr) {
            c.io_fault      = faults::hook;
            c.io_fault_user = o.fault;
        }
        if (kvp_pager_create(&c, &p_) != 0) {
            ADD_FAILURE() << kvp_last_error();
            abort();
        }
        for (uint32_t l = 0; l < o.layers; l++) {
            const kvp_layer_desc d{l % o.groups, o.n_cells, o.kv_heads, o.dk, o.dv, o.type_k, o.type_v};
            uint32_t number = ~0u;
            EXPECT_EQ(0, kvp_layer_add(p_, &d, &number)) << kvp_last_error();
            EXPECT_EQ(l, number);
        }
        EXPECT_EQ(0, kvp_pager_start(p_)) << kvp_last_error();
    }
    ~pager() { kvp_pager_free(p_); }
    pager(const pager &) = delete;
    pager & operator=(const pager &) = delete;

    operator kvp_pager *() const { return p_; }
    const options & opt() const { return options_; }
    uint32_t pages() const { return (options_.n_cells + options_.page_cells - 1) / options_.page_cells; }
    size_t row_k() const { return kvp_layer_row_k(p_, 0); }
    size_t row_v() const { return kvp_layer_row_v(p_, 0); }
    kvp_stats stats() const {
        kvp_stats s;
        kvp_pager_stats(p_, &s);
        return s;
    }

    static size_t page_bytes(const options & o) {
        const auto up = [](size_t n) { return (n + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN; };
        return up(up(o.page_cells * o.kv_heads * kvp_row_bytes(o.type_k, o.dk)) +
                  o.page_cells * o.kv_heads * kvp_row_bytes(o.type_v, o.dv));
    }

    // Fills a whole page with a byte, through a pin. 0 or the error.
    int fill(uint32_t layer, uint32_t page, int byte) const {
        kvp_page at;
        const int rc = kvp_pin(p_, layer, page, &at);
        if (rc == 0) {
            memset(at.k, byte, row_k() * options_.page_cells);
            memset(at.v, byte, row_v() * options_.page_cells);
            kvp_unpin(p_, layer, page, 1);
        }
        return rc;
    }

    bool holds(const kvp_page & at, int byte) const {
        const auto all = [byte](const uint8_t * x, size_t n) {
            return x[0] == uint8_t(byte) && memcmp(x, x + 1, n - 1) == 0;
        };
        return all(at.k, row_k() * options_.page_cells) && all(at.v, row_v() * options_.page_cells);
    }

    // Whether a page reads as all one byte; the error where it cannot be pinned.
    int check(uint32_t layer, uint32_t page, int byte) const {
        kvp_page at;
        const int rc = kvp_pin(p_, layer, page, &at);
        if (rc != 0) {
            return rc;
        }
        const bool same = holds(at, byte);
        kvp_unpin(p_, layer, page, 0);
        return same;
    }

    std::vector<uint32_t> all_pages() const {
        std::vector<uint32_t> list;
        for (uint32_t i = 0; i < pages(); i++) {
            list.push_back(i);
        }
        return list;
    }

    // Visits pages in an unordered scan with one thread; visit gets (page, kvp_page).
    int scan(uint32_t layer, const std::vector<uint32_t> & list,
             const std::function<void(uint32_t, const kvp_page &)> & visit = nullptr) const {
        kvp_scan * s = nullptr;
        int rc = kvp_scan_begin(p_, layer, list.data(), uint32_t(list.size()), 0, 1, &s);
        if (rc != 0) {
            return rc;
        }
        uint32_t index, part;
        kvp_page at;
        while ((rc = kvp_scan_claim(s, &index, &part, &at)) == 1) {
            if (visit) {
                visit(list[index], at);
            }
            kvp_scan_release(s, index);
        }
        kvp_scan_end(s);
        return rc;
    }

  private:
    options     options_;
    kvp_pager * p_ = nullptr;
};

inline void in_threads(uint32_t n, const std::function<void(uint32_t)> & f) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < n; i++) {
        threads.emplace_back(f, i);
    }
    for (auto & t : threads) {
        t.join();
    }
}

}  // namespace rig
