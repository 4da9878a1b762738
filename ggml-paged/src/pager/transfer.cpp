#include "pager/transfer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pager/crc32c.h"
#include "pager/sums.h"

namespace kvp {

namespace {

constexpr const char * CONSEQUENCE = "what was computed since cannot be used: check the disk and load the model again";

int fault(kvp_pager & p, bool write, uint64_t offset, size_t bytes) {
    return p.config.io_fault != nullptr ? std::min(0, p.config.io_fault(p.config.io_fault_user, write, offset, bytes)) : 0;
}

void read_slot(kvp_pager & p, const layer_state & l, uint8_t * data, const source & from, transfer & t) {
    t.reads++;
    t.bytes += l.page_bytes;
    t.offset = from.offset;
    t.rc     = fault(p, false, from.offset, l.page_bytes);
    if (t.rc == 0) {
        t.rc = p.spill.read(data, l.page_bytes, from.offset);
    }
    t.damaged = t.rc == 0 && !sums_match(from.sums, data, l.page_bytes);
}

int read_extent(kvp_pager & p, const extent_ref & x, void * data, size_t bytes, uint64_t offset, transfer & t) {
    t.reads++;
    t.bytes += bytes;
    t.extent_bytes += bytes;
    t.file   = x.file;
    t.offset = offset;
    const int rc = fault(p, false, offset, bytes);
    return rc != 0 ? rc : x.file->read(data, bytes, offset);
}

void read_rows(kvp_pager & p, const extent_ref & x, uint8_t * data, size_t bytes, bool v, transfer & t) {
    t.rc      = read_extent(p, x, data, bytes, v ? x.v_offset : x.k_offset, t);
    t.damaged = t.rc == 0 && crc32c(data, bytes) != (v ? x.v_sum : x.k_sum);
}

void fill_from_extents(kvp_pager & p, const layer_state & l, uint8_t * data, const source & from, transfer & t) {
    uint32_t rows = 0;
    for (const extent_ref & x : from.extents) {
        for (bool v : {false, true}) {
            const size_t row = v ? l.row_v : l.row_k;
            read_rows(p, x, data + (v ? l.v_offset : 0) + x.first * row, x.n * row, v, t);
            if (t.rc != 0 || t.damaged) {
                return;
            }
        }
        rows = std::max(rows, x.first + x.n);
    }
    std::memset(data + rows * l.row_k, 0, l.v_offset - rows * l.row_k);
    std::memset(data + l.v_offset + rows * l.row_v, 0, l.page_bytes - l.v_offset - rows * l.row_v);
}

// Reads through a window, without a frame.
int sum_rows(kvp_pager & p, const extent_ref & x, size_t bytes, uint64_t offset, uint32_t * sum, transfer & t) {
    constexpr size_t WINDOW = 1024 * 1024;
    std::unique_ptr<void, decltype(&free)> window(aligned_alloc(KVP_ALIGN, WINDOW), &free);
    if (!window) {
        return -ENOMEM;
    }
    *sum = 0;
    for (size_t at = 0; at < bytes; at += WINDOW) {
        const size_t n  = std::min(WINDOW, bytes - at);
        const int    rc = read_extent(p, x, window.get(), n, offset + at, t);
        if (rc != 0) {
            return rc;
        }
        *sum = crc32c(window.get(), n, *sum);
    }
    return 0;
}

struct span {
    size_t from, to;
};

// The bytes to write for the slot to hold the page: all, or the dirty rows of K and of V in
// whole disk blocks.
std::array<span, 2> to_write(const layer_state & l, const page_entry & e) {
    if (!e.in_slot) {
        return {{{0, l.page_bytes}, {0, 0}}};
    }
    const auto rows = [&e](size_t base, size_t row) {
        const size_t from = base + e.dirty_rows.first * row, to = base + e.dirty_rows.end * row;
        return span{from / KVP_ALIGN * KVP_ALIGN, (to + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN};
    };
    const span k = rows(0, l.row_k), v = rows(l.v_offset, l.row_v);
    if (k.to == v.from) {
        return {{{k.from, v.to}, {0, 0}}};
    }
    return {{k, v}};
}

}  // namespace

source take_source(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    source from;
    from.in_slot = e.in_slot;
    from.offset  = uint64_t(e.slot) * p.frame_bytes;
    from.sums    = e.sums.get();
    from.zero    = p.frames[e.frame].zero;
    if (e.extra) {
        from.extents   = e.extra->extents;
        from.rotations = std::move(e.extra->rotations);
        e.extra->rotations.clear();
    }
    return from;
}

void fill(kvp_pager & p, const layer_state & l, uint8_t * data, const source & from, transfer & t) {
    if (!from.extents.empty()) {
        fill_from_extents(p, l, data, from, t);
    } else if (from.in_slot) {
        read_slot(p, l, data, from, t);
    } else if (!from.zero) {
        std::memset(data, 0, l.page_bytes);
    }
    if (t.damaged) {
        t.rc = -EIO;
    }
}

void sum_extents(kvp_pager & p, const layer_state & l, std::vector<extent_ref> & extents, transfer & t) {
    for (extent_ref & x : extents) {
        t.rc = sum_rows(p, x, x.n * l.row_k, x.k_offset, &x.k_sum, t);
        if (t.rc == 0) {
            t.rc = sum_rows(p, x, x.n * l.row_v, x.v_offset, &x.v_sum, t);
        }
        if (t.rc != 0) {
            return;
        }
    }
}

int write_page(kvp_pager & p, page_id id, lock_t & lock) {
    const page_entry & e  = p.at(id);
    const layer_state & l = *p.layers[id.layer];
    const uint64_t offset = uint64_t(e.slot) * p.frame_bytes;
    const uint8_t * data  = p.frame_data(e.frame);
    uint32_t * sums       = e.sums.get();
    const auto spans      = to_write(l, e);
    lock.unlock();
    const uint64_t start = now_ns();
    uint64_t bytes = 0;
    int rc = 0;
    for (const span & s : spans) {
        if (s.from == s.to || rc != 0) {
            continue;
        }
        renew_sums(sums, data, l.page_bytes, s.from, s.to);
        rc = fault(p, true, offset + s.from, s.to - s.from);
        if (rc == 0) {
            rc = p.spill.write(data + s.from, s.to - s.from, offset + s.from);
        }
        bytes += s.to - s.from;
    }
    const uint64_t ns = now_ns() - start;
    lock.lock();
    p.stats.io_ns += ns;
    p.stats.writes++;
    p.stats.write_bytes += bytes;
    if (rc != 0) {
        char text[512];
        snprintf(text, sizeof text, "writing page %u of layer %u to the spill file in %s failed: %s; %s", id.page, id.layer,
            p.spill.dir().c_str(), strerror(-rc), CONSEQUENCE);
        fail_locked(p, rc, text);
    }
    return rc;
}

void fail_read(kvp_pager & p, page_id id, const transfer & t) {
    char text[768];
    const std::string where = t.file ? "the file it was restored from, " + t.file->name() + "," : "the spill file in " + p.spill.dir();
    if (t.damaged) {
        snprintf(text, sizeof text, "page %u of layer %u: what %s holds at %llu is not what was written there; %s", id.page,
            id.layer, where.c_str(), (unsigned long long) t.offset, CONSEQUENCE);
    } else {
        snprintf(text, sizeof text, "reading page %u of layer %u from %s failed: %s; %s", id.page, id.layer, where.c_str(),
            strerror(-t.rc), CONSEQUENCE);
    }
    fail_locked(p, t.rc, text);
}

}  // namespace kvp
