// The executor on the real pager, with a spill file and as little as one frame.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>

#include "kv_pager.h"
#include "rig.h"

using namespace kvp;

namespace {

constexpr uint32_t page_cells = 16;

// f32 rows are stored as twice as many f16 elements: the pager copies bytes.
attention_case make_case(uint64_t seed) {
    case_shape shape;
    shape.pages = 10, shape.page_cells = page_cells, shape.last_cells = 5;
    shape.v_align = KVP_ALIGN;
    return attention_case(shape, seed);
}

// A pager with the case's K and V in it, as a source that watches its pins.
class pager_rig : public watched_frames {
public:
    pager_rig(const attention_case & c, uint32_t frames) : case_(c) {
        const kvp_layer_desc layer = {0, c.shape.pages * page_cells, 1, c.shape.dk * 2, c.shape.dv * 2, KVP_F16, KVP_F16};
        kvp_config config{};
        config.page_cells = page_cells;
        config.ram_bytes  = frames * 2 * (uint64_t) KVP_ALIGN;
        config.spill_dir  = SPILL_DIR;
        config.io_fault   = [](void * u, int write, uint64_t, size_t) {
            pager_rig & r = *static_cast<pager_rig *>(u);
            return !write && r.reads_++ == r.fail_at ? -EIO : 0;
        };
        config.io_fault_user = this;
        error = kvp_pager_create(&config, &pager_);
        uint32_t number = 0;
        error = error ? error : kvp_layer_add(pager_, &layer, &number);
        error = error ? error : kvp_pager_start(pager_);
        error = error ? error : kvp_reserve(pager_, 0, c.shape.pages);
        for (uint32_t p = 0; error == 0 && p < c.shape.pages; p++) {
            write_page(p);
        }
        EXPECT_TRUE(error != 0 || kvp_pager_frames(pager_) == frames);
        table_.pin      = kvp_pin;
        table_.unpin    = kvp_unpin;
        table_.prefetch = kvp_prefetch;
        layer_          = {&table_, pager_, number};
        inner_          = source_of(&layer_);
        reads_          = 0;
    }
    ~pager_rig() override { kvp_pager_free(pager_); }

    page_source source() {
        return {this,
                [](void * u, uint32_t page, kvp_page * out) { return self(u).pin(page, out); },
                [](void * u, uint32_t page) { self(u).unpin(page); },
                [](void * u, const uint32_t * pages, uint32_t n) { self(u).inner_.prefetch(self(u).inner_.ctx, pages, n); }};
    }

    bool read(const void * src, size_t bytes, void * dst) override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (find(src) < 0) {
            return false;
        }
        memcpy(dst, src, bytes);
        return true;
    }
    int64_t page_at(const void * src) override {
        std::lock_guard<std::mutex> lock(mutex_);
        return find(src);
    }
    size_t pins_left() {
        std::lock_guard<std::mutex> lock(mutex_);
        return pinned_.size();
    }
    int reads() const { return reads_; }

    int              error   = 0;
    std::atomic<int> fail_at{-1};

private:
    static pager_rig & self(void * u) { return *static_cast<pager_rig *>(u); }

    void write_page(uint32_t page) {
        const uint8_t * bytes = case_.contents[page].data();
        for (uint32_t i = 0; i < page_cells && error == 0; i++) {
            const uint32_t cell = page * page_cells + i;
            error = kvp_rows_write(pager_, 0, &cell, 1, bytes + i * case_.row_k, bytes + case_.v_offset + i * case_.row_v);
        }
    }
    int pin(uint32_t page, kvp_page * out) {
        const int err = inner_.pin(inner_.ctx, page, out);
        if (err == 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            pinned_[page] = out->k;
        }
        return err;
    }
    void unpin(uint32_t page) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            pinned_.erase(page);
        }
        inner_.unpin(inner_.ctx, page);
    }
    int64_t find(const void * src) const {
        for (const auto & p : pinned_) {
            if ((uintptr_t) src >= (uintptr_t) p.second && (uintptr_t) src < (uintptr_t) p.second + case_.page_bytes) {
                return p.first;
            }
        }
        return -1;
    }

    const attention_case &              case_;
    kvp_pager *                         pager_ = nullptr;
    kvp_iface                           table_{};
    iface_layer                         layer_{};
    page_source                         inner_{};
    std::mutex                          mutex_;
    std::map<uint32_t, const uint8_t *> pinned_;
    std::atomic<int>                    reads_{0};
};

struct outcome {
    int                      error;
    std::vector<float>       out;
    std::vector<std::string> violations;
};

outcome run_on(pager_rig & pager, hybrid_executor & executor, const attention_case & c, uint64_t seed) {
    fake_device::options o;
    o.seed = seed;
    o.when = (fake_device::pace) (seed % 3);
    fake_device        device(c, pager, o);
    fake_cpu           cpu(c);
    const kvp_device   vtable = device.device();
    const page_source  source = pager.source();
    const cpu_attend   attend = cpu.attend();
    const hybrid_plan  plan   = random_plan(c, seed, true, true, seed % 2);
    const int error = executor.run(c.op(1 + (uint32_t) (seed % 3)), plan, vtable, source, &attend, nullptr);
    return {error, device.out(), device.violations()};
}

}  // namespace

TEST(Pager, AnyNumberOfFrames) {
    auto executor = hybrid_executor::make(3);
    for (uint32_t frames : {1u, 2u, 3u, 10u}) {
        const attention_case c = make_case(frames);
        pager_rig            pager(c, frames);
        if (pager.error == -EOPNOTSUPP) {
            GTEST_SKIP() << kvp_last_error();
        }
        ASSERT_EQ(pager.error, 0) << kvp_last_error();
        for (uint64_t seed = 0; seed < 20; seed++) {
            const outcome r = run_on(pager, *executor, c, seed);
            EXPECT_EQ(r.error, 0) << executor->error();
            EXPECT_EQ(r.violations, std::vector<std::string>());
            EXPECT_LE(c.error(r.out), 2e-5) << frames << " frames, seed " << seed;
            EXPECT_EQ(pager.pins_left(), 0u);
        }
    }
}

TEST(Pager, AReadThatFailsStopsTheRun) {
    auto executor = hybrid_executor::make(2);
    const attention_case c = make_case(9);
    int failed = 0;
    for (int at = 0; at < 8; at++) {
        pager_rig pager(c, 1 + (uint32_t) (at % 3));
        if (pager.error == -EOPNOTSUPP) {
            GTEST_SKIP() << kvp_last_error();
        }
        ASSERT_EQ(pager.error, 0) << kvp_last_error();
        pager.fail_at   = at;
        const outcome r = run_on(pager, *executor, c, (uint64_t) at * 2);
        failed += r.error != 0;
        EXPECT_TRUE(r.error == 0 || r.error == -EIO) << executor->error();
        EXPECT_EQ(r.violations, std::vector<std::string>());
        EXPECT_EQ(pager.pins_left(), 0u);
    }
    EXPECT_GT(failed, 3);
}
