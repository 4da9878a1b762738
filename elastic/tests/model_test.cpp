// Random histories of pools against a model of a few lines: a map of committed granules with
// the byte that each holds. KVC_HISTORIES sets their number for each backing.
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "rig.h"

using rig::page;

namespace {

constexpr size_t va_granules     = 24;
constexpr size_t device_granules = 20; // less than the address space: out of memory is common

struct ModelBuffer {
    std::unique_ptr<rig::Buffer> real;
    size_t size = 0;
    std::map<size_t, uint8_t> held; // committed granules
    size_t granules() const { return (size + page - 1) / page; }
    size_t end() const { return held.empty() ? 0 : held.rbegin()->first + 1; }
};

class History {
public:
    History(int device, uint32_t flags, uint64_t seed) : random_(seed), device_(device), bare_((flags & KVC_BARE) != 0),
          bare_end_((flags & KVC_BARE_END) != 0) {
        kvc_options_t o{};
        o.flags         = flags;
        o.reserve_bytes = pick(6) * page;
        o.limit_bytes   = (4 + pick(20)) * page;
        limit_   = o.limit_bytes;
        reserve_ = o.reserve_bytes;
        pool_ = std::make_unique<rig::Pool>(va_granules * page, device, o);
    }

    void run(size_t steps) {
        for (size_t i = 0; i < steps && !testing::Test::HasFailure(); i++) {
            step();
            check();
        }
        buffers_.clear();
        if (!testing::Test::HasFailure()) {
            check();
        }
    }

private:
    size_t pick(size_t n) { return random_() % n; }

    void step() {
        const size_t choice = pick(16);
        if (choice < 2 || buffers_.empty()) {
            alloc();
            return;
        }
        ModelBuffer & b = *buffers_[pick(buffers_.size())];
        if (choice == 2) {
            drop(b);
        } else if (choice == 3) {
            resize();
        } else if (choice < 5) {
            fault(b);
        } else if (choice < 11) {
            commit(b);
        } else {
            uncommit(b);
        }
    }

    void alloc() {
        auto b  = std::make_unique<ModelBuffer>();
        b->size = 1 + pick(8 * page);
        b->real = std::make_unique<rig::Buffer>(*pool_, b->size);
        const bool fits = reserved() + b->granules() <= va_granules;
        ASSERT_EQ(fits ? KVC_OK : KVC_E_LIMIT, b->real->rc) << kvc_last_error();
        if (fits) {
            buffers_.push_back(std::move(b));
        }
    }

    void drop(ModelBuffer & b) {
        for (size_t i = 0; i < buffers_.size(); i++) {
            if (buffers_[i].get() == &b) {
                buffers_.erase(buffers_.begin() + i);
                return;
            }
        }
    }

    void resize() {
        limit_ = pick(va_granules + 4) * page + pick(2) * 100;
        const int rc = kvc_pool_resize(pool_->handle, limit_);
        limit_ = std::min(limit_, va_granules * page);
        ASSERT_EQ(committed() * page > limit_ ? KVC_E_OVER : KVC_OK, rc);
    }

    void range(const ModelBuffer & b, size_t & offset, size_t & size) {
        offset = pick(b.size + 1);
        size   = pick(b.size - offset + 1);
        if (pick(2) == 0) { // aligned
            offset = offset / page * page;
            size   = std::min((size + page - 1) / page * page, b.size - offset);
        }
    }

    void commit(ModelBuffer & b) {
        size_t offset, size;
        range(b, offset, size);
        std::vector<size_t> fresh;
        for (size_t g = offset / page; size > 0 && g <= (offset + size - 1) / page; g++) {
            if (b.held.count(g) == 0) {
                fresh.push_back(g);
            }
        }
        const size_t after = committed() + fresh.size();
        const size_t device_room = device_ == KVC_CPU ? SIZE_MAX : device_granules - (bare_ ? 0 : 1);
        const int want = fresh.empty()             ? KVC_OK
                       : after * page > limit_     ? KVC_E_LIMIT
                       : after > device_room       ? KVC_E_NO_MEMORY
                                                   : KVC_OK;
        const int rc = kvc_buffer_commit(b.real->handle, offset, size);
        ASSERT_EQ(want, rc) << kvc_last_error();
        if (rc == KVC_OK) {
            fill(b, fresh);
        }
    }

    void fill(ModelBuffer & b, const std::vector<size_t> & fresh) {
        for (size_t g : fresh) {
            uint8_t * at = b.real->base + g * page;
            ASSERT_TRUE(rig::all(at, page, 0)) << "granule " << g;
            b.held[g] = uint8_t(1 + pick(255));
            memset(at, b.held[g], page);
        }
    }

    // fault makes one call of the driver or none fail during a commit, which then may fail.
    void fault(ModelBuffer & b) {
        if (device_ == KVC_CPU || committed() + 8 > device_granules) {
            stray(b);
            return;
        }
        size_t offset, size;
        range(b, offset, size);
        fakecuda_fail(nullptr, 1 + pick(30), 999, 0);
        const int rc = kvc_buffer_commit(b.real->handle, offset, size);
        fakecuda_fail(nullptr, 0, 0, 0);
        std::vector<size_t> fresh;
        for (size_t g = offset / page; rc == KVC_OK && size > 0 && g <= (offset + size - 1) / page; g++) {
            if (b.held.count(g) == 0) {
                fresh.push_back(g);
            }
        }
        fill(b, fresh);
    }

    // stray writes to uncommitted memory, as padded kernels do.
    void stray(ModelBuffer & b) {
        const size_t g = pick(b.granules());
        if (!bare_ && b.held.count(g) == 0 && (!bare_end_ || g < b.end())) {
            memset(b.real->base + g * page, 0xEE, page);
        }
    }

    void uncommit(ModelBuffer & b) {
        size_t offset, size;
        range(b, offset, size);
        ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.real->handle, offset, size)) << kvc_last_error();
        for (size_t g = 0; g < b.granules(); g++) {
            const size_t end = std::min((g + 1) * page, b.size);
            if (size > 0 && offset <= g * page && end <= offset + size) {
                b.held.erase(g);
            }
        }
    }

    size_t reserved() const {
        size_t n = 0;
        for (const auto & b : buffers_) {
            n += b->granules();
        }
        return n;
    }
    size_t ends() const {
        size_t n = 0;
        for (const auto & b : buffers_) {
            n += b->end();
        }
        return n;
    }
    size_t committed() const {
        size_t n = 0;
        for (const auto & b : buffers_) {
            n += b->held.size();
        }
        return n;
    }

    void check() {
        const kvc_stats_t s = pool_->stats();
        ASSERT_EQ(committed() * page, s.committed_bytes);
        ASSERT_EQ(reserved() * page, s.reserved_bytes);
        ASSERT_EQ(limit_, s.limit_bytes);
        ASSERT_LE(s.prealloc_bytes, reserve_);
        ASSERT_TRUE(s.prealloc_bytes == 0 || s.committed_bytes + s.prealloc_bytes <= s.limit_bytes);
        for (const auto & b : buffers_) {
            for (const auto & [g, value] : b->held) {
                ASSERT_TRUE(rig::all(b->real->base + g * page, page, value)) << "granule " << g;
                ASSERT_EQ(1, kvc_buffer_committed(b->real->handle, g * page, 1));
            }
        }
        for (const auto & b : buffers_) {
            for (size_t g = 0; bare_end_ && g < b->granules(); g++) {
                const bool held = b->held.count(g) != 0;
                ASSERT_EQ(!held && g < b->end() ? 1 : 0, kvc_buffer_disturbs(b->real->handle, g * page, 1)) << "granule " << g;
                ASSERT_EQ(g < b->end(), fakecuda_shown(b->real->base + g * page) != 0) << "granule " << g;
            }
        }
        if (device_ != KVC_CPU) {
            const fakecuda_state f = rig::Fake::state();
            ASSERT_EQ(s.committed_bytes + s.prealloc_bytes + (bare_ ? 0 : page), f.used);
            ASSERT_EQ(bare_ ? committed() : bare_end_ ? ends() : reserved(), f.mappings);
            ASSERT_EQ(0u, f.violations) << fakecuda_violation();
        }
    }

    std::mt19937_64 random_;
    const int  device_;
    const bool bare_, bare_end_;
    size_t limit_ = 0, reserve_ = 0;
    std::unique_ptr<rig::Pool> pool_;
    std::vector<std::unique_ptr<ModelBuffer>> buffers_;
};

size_t histories() {
    const char * n = getenv("KVC_HISTORIES");
    return n != nullptr ? strtoull(n, nullptr, 10) : 100000;
}

void play(int device, uint32_t flags, size_t n) {
    const char * only = getenv("KVC_SEED");
    rig::Fake fake(device_granules);
    for (size_t seed = 0; seed < n; seed++) {
        const uint64_t this_seed = only != nullptr ? strtoull(only, nullptr, 10) : seed;
        SCOPED_TRACE(testing::Message() << "KVC_SEED=" << this_seed);
        History(device, flags, this_seed).run(12);
        if (testing::Test::HasFailure() || only != nullptr) {
            return;
        }
    }
}

TEST(Histories, OfHostMemory) { play(KVC_CPU, 0, histories()); }
TEST(Histories, OfCudaMemory) { play(0, 0, histories()); }
TEST(Histories, OfCudaMemoryThatIsBare) { play(0, KVC_BARE, histories() / 4); }
TEST(Histories, OfCudaMemoryWithABareEnd) { play(0, KVC_BARE_END, histories() / 4); }

}  // namespace
