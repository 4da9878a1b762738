// The whole op on the emulated GPU, over a real pager: staging, new rows, hot pages, the
// CPU lane, errors. CUDA adds only one file, cuda/device.cu.
#include <gtest/gtest.h>

#include <errno.h>

#include "forward_case.h"

namespace {

using emulator::emulated_gpu;
using emulator::faults;

constexpr double bound = 1e-5;

// Consecutive batches, each over the rows that earlier batches have written.
void expect_exact(forward_shape s, uint32_t batches, uint64_t seed, const std::string & name) {
    forward_case c(s);
    emulated_gpu g(seed);
    {
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        for (uint32_t b = 0; b < batches; ++b) {
            c.begin_batch();
            ASSERT_EQ(c.run(g, *paged), 0) << name << ": " << kvp_last_error();
            ASSERT_EQ(g.wrong(), "") << name;
            ASSERT_LE(c.worst(), bound) << name << ", batch " << b;
        }
    }
    g.drain();
    EXPECT_EQ(g.pool_blocks(), 0u) << name;
    EXPECT_EQ(g.kept_blocks(), 0u) << name;
    EXPECT_EQ(g.wrong(), "") << name;
}

TEST(forward, many_orders_of_events) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
        forward_shape s;
        s.seed = seed;
        s.frames = 1 + uint32_t(seed % 5);
        s.slots = 2 + uint32_t(seed % 3);
        s.n_q = 1 + uint32_t(seed % 4);
        s.sinks = seed % 2;
        expect_exact(s, 3, seed, "seed " + std::to_string(seed));
    }
}

TEST(forward, types_and_head_sizes) {
    const int types[] = {KVP_F16, KVP_Q8_0, KVP_Q4_0};
    uint32_t n = 0;
    for (int k : types) {
        for (int v : types) {
            forward_shape s;
            s.type_k = k;
            s.type_v = v;
            s.dk = n % 3 == 0 ? 128 : n % 3 == 1 ? 96 : 576;
            s.dv = s.dk == 576 ? 512 : s.dk;
            s.n_q = n % 2 ? 1 : 9;
            s.kv_heads = 1;
            s.history = 50;
            expect_exact(s, 2, ++n, "types " + std::to_string(k) + " " + std::to_string(v));
        }
    }
}

TEST(forward, masks_and_bias) {
    for (uint32_t kind = 0; kind < 4; ++kind) {
        for (uint32_t n_q : {1u, 12u}) {
            forward_shape s;
            s.n_q = n_q;
            s.window = kind == 0 ? 20 : INT32_MAX;
            s.max_bias = kind == 1 ? 8.0f : 0.0f;
            s.seqs = kind == 2 ? 3 : 1;
            s.page_cells = kind == 3 ? 256 : 16;
            s.history = kind == 3 ? 600 : 100;
            expect_exact(s, 2, kind, "kind " + std::to_string(kind));
        }
    }
}

TEST(forward, cpu_lane) {
    uint64_t pages = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
        forward_shape s;
        s.workers = 2;
        s.frames = 5;
        s.history = 300;
        s.seed = seed;
        s.n_q = 2;
        forward_case c(s);
        emulated_gpu g(seed);
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        c.begin_batch();
        ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
        ASSERT_EQ(g.wrong(), "");
        ASSERT_LE(c.worst(), bound);
        pages += c.cpu_pages;
    }
    EXPECT_GT(pages, 0u);
}

// Prefill alone is on tensor cores, from compute capability 7.5 on; orders change no bit.
TEST(forward, prefill_is_on_tensor_cores_where_there_are_some) {
    const auto out_of = [](uint32_t n_q, uint32_t capability, uint64_t seed) {
        forward_shape s;
        s.n_q = n_q;
        forward_case c(s);
        emulated_gpu g(seed, {}, capability);
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        c.begin_batch();
        EXPECT_EQ(c.run(g, *paged), 0) << kvp_last_error();
        EXPECT_EQ(g.wrong(), "");
        EXPECT_LE(c.worst(), n_q > 8 && capability >= 75 ? 1e-3 : bound);
        return c.out;
    };
    EXPECT_EQ(out_of(20, 61, 1), out_of(20, 72, 2));
    EXPECT_NE(out_of(20, 72, 1), out_of(20, 75, 1));
    EXPECT_EQ(out_of(20, 75, 1), out_of(20, 90, 2));
    EXPECT_EQ(out_of(8, 61, 1), out_of(8, 90, 2));
}

TEST(forward, layers_that_share_rows_bring_none) {
    forward_shape s;
    s.new_rows = false;
    forward_case c(s);
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, c.config());
    c.begin_batch();
    ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
    EXPECT_LE(c.worst(), bound);
}

// The same bits with any budget, any resident pages, and any timing.
TEST(forward, bits_repeat) {
    std::vector<float> first;
    for (uint32_t i = 0; i < 6; ++i) {
        forward_shape s;
        s.frames = 1 + 3 * i;
        s.slots = 2 + i % 2;
        forward_case c(s);
        emulated_gpu g(i);
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        c.begin_batch();
        ASSERT_EQ(c.run(g, *paged), 0);
        first = first.empty() ? c.out : first;
        EXPECT_EQ(c.out, first) << i;
    }
}

TEST(forward, a_reserving_batch_takes_memory_and_computes_nothing) {
    forward_shape s;
    forward_case c(s);
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, c.config());
    c.begin_batch(true);
    EXPECT_EQ(c.run(g, *paged), 0);
    EXPECT_EQ(g.pool_blocks(), 0u);
    EXPECT_EQ(g.waits(), 0u);
    EXPECT_EQ(kvp_pager_error(c.pager, nullptr), 0);
}

TEST(forward, too_little_device_memory_is_an_error_and_zeros) {
    for (uint64_t memory = 40000; memory < 200000; memory += 9000) {
        forward_shape s;
        forward_case c(s);
        faults f;
        f.memory = memory;
        emulated_gpu g(1, f);
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        c.begin_batch();
        const int e = c.run(g, *paged);
        EXPECT_EQ(g.wrong(), "");
        EXPECT_EQ(g.pool_blocks(), 0u);
        if (e == 0) {
            EXPECT_LE(c.worst(), bound);
            EXPECT_GT(memory, 60000u);
            continue;
        }
        const char * message = "";
        EXPECT_EQ(kvp_pager_error(c.pager, &message), e);
        EXPECT_NE(std::string(message).find("memory"), std::string::npos) << message;
    }
}

// Without room to keep copies of pages, they are streamed.
bool only_of_copies(const emulated_gpu & g) {
    const std::string why = g.last_error();
    return why.find("keep") != std::string::npos || why.find("free memory") != std::string::npos;
}

// An error at any call of the device: it comes back, is sticky, out is zeros, nothing is
// left behind and nothing hangs.
TEST(forward, every_device_call_may_fail) {
    forward_shape s;
    s.hot = 2;
    s.history = 60;
    s.workers = 1;
    uint64_t calls = 1000, failed = 0, without_copies = 0;
    for (uint64_t at = 1; at < calls; ++at) {
        forward_case c(s);
        faults f;
        f.fail_at = int64_t(at);
        emulated_gpu g(at, f);
        int e = 0;
        uint64_t made = 0;
        {
            auto paged = kvp_gpu::paged_gpu::make(g, c.config());
            c.begin_batch();
            e = paged ? c.run(g, *paged) : -EIO;
            made = g.calls();
        }
        if (made <= at) {
            break;  // nothing failed: there are no more calls
        }
        ++failed;
        ASSERT_EQ(g.wrong(), "") << "call " << at;
        if (only_of_copies(g)) {
            ++without_copies;
            ASSERT_EQ(e, 0) << "call " << at;
            ASSERT_LE(c.worst(), bound) << "call " << at;
        } else {
            ASSERT_NE(e, 0) << "call " << at;
        }
        if (kvp_pager_error(c.pager, nullptr)) {
            ASSERT_TRUE(c.all_zero()) << "call " << at;
        }
        ASSERT_EQ(g.pool_blocks(), 0u) << "call " << at;
        ASSERT_EQ(g.kept_blocks(), 0u) << "call " << at;
    }
    EXPECT_GT(failed, 50u);
    EXPECT_GT(without_copies, 2u);
}

// Every wait of a stream for another is there for a reason: left out, it is noticed, by the
// order of accesses or by the result.
TEST(forward, no_wait_can_be_left_out) {
    forward_shape s;
    s.slots = 2;
    s.history = 80;
    uint64_t waits = 1000;
    for (uint64_t drop = 0; drop < waits; ++drop) {
        forward_case c(s);
        faults f;
        f.drop_wait = int64_t(drop);
        emulated_gpu g(drop, f);
        auto paged = kvp_gpu::paged_gpu::make(g, c.config());
        c.begin_batch();
        ASSERT_EQ(c.run(g, *paged), 0);
        waits = g.waits();
        EXPECT_TRUE(!g.wrong().empty() || c.worst() > bound) << "wait " << drop << " of " << waits;
    }
    EXPECT_GT(waits, 8u);
}

TEST(forward, what_has_no_kernel_is_refused_by_name) {
    forward_shape s;
    s.dk = s.dv = 112;
    forward_case c(s);
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, c.config());
    c.begin_batch();
    EXPECT_EQ(c.run(g, *paged), -ENOTSUP);
    const char * message = "";
    EXPECT_EQ(kvp_pager_error(c.pager, &message), -ENOTSUP);
    EXPECT_NE(std::string(message).find("heads of 64"), std::string::npos) << message;
}

} // namespace
