// The CPU lane with the library's own kernels, which the op's table names.
#include <gtest/gtest.h>

#include <errno.h>

#include <cstddef>

#include "forward_case.h"

namespace {

using emulator::emulated_gpu;

constexpr double bound = 1e-5;

// own_lane is a configuration that leaves the choice of kernels to the op.
kvp_cuda_config own_lane(uint32_t workers) {
    kvp_cuda_config config = {};
    config.slots = 2;
    config.workers = workers;
    return config;
}

forward_shape long_history() {
    forward_shape s;
    s.frames = 5;
    s.history = 300;
    s.sinks = true;
    return s;
}

} // namespace

TEST(cpu_lane, pages_are_attended_by_the_op_itself) {
    for (uint32_t n_q : {1u, 5u, 40u}) {
        uint64_t bytes = 0;
        for (uint32_t workers : {1u, 2u, 4u}) {
            forward_shape s = long_history();
            s.n_q = n_q;
            s.seqs = 1 + workers % 2;
            s.max_bias = n_q == 5 ? 8.0f : 0.0f;
            s.type_k = n_q == 1 ? KVP_Q8_0 : KVP_F16;
            if (n_q == 40) {
                // Enough work that a plan nevertheless gives some of it to the CPU.
                s.page_cells = 64;
                s.history = 1500;
                s.frames = 30;
                s.group = 1;
            }
            forward_case c(s);
            emulated_gpu g(n_q);
            auto paged = kvp_gpu::paged_gpu::make(g, own_lane(workers));
            for (uint32_t batch = 0; batch < 3; ++batch) {
                c.begin_batch();
                ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
                ASSERT_EQ(g.wrong(), "");
                ASSERT_LE(c.worst(), bound) << n_q << " queries, " << workers << " workers";
                // Later batches are planned by the measured rates of this machine.
                bytes += batch == 0 ? paged->measured().cpu.bytes : 0;
            }
        }
        EXPECT_GT(bytes, 0u) << n_q << " queries";
    }
}

// An engine that was built with an older library has a table without the function.
TEST(cpu_lane, an_older_table_means_no_workers) {
    forward_case c(long_history());
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, own_lane(2));
    c.begin_batch();
    kvp_op_head * head = reinterpret_cast<kvp_op_head *>(c.op);
    kvp_iface older = *head->iface;
    older.size = offsetof(kvp_iface, cpu_page);
    older.cpu_page = [](void *, uint32_t, kvp_op *, const kvp_io *, uint32_t, uint32_t, kvp_class, const kvp_page *, float *, float *,
                        float *) { return -1; };
    head->iface = &older;
    ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
    EXPECT_LE(c.worst(), bound);
    EXPECT_EQ(paged->measured().cpu.bytes, 0u);
}

// A library that is newer than this one has a longer table.
TEST(cpu_lane, a_longer_table_is_as_good) {
    struct longer_table {
        kvp_iface iface;
        void (*more[4])();
    };
    forward_case c(long_history());
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, own_lane(2));
    c.begin_batch();
    kvp_op_head * head = reinterpret_cast<kvp_op_head *>(c.op);
    longer_table longer = {*head->iface, {}};
    longer.iface.size = sizeof longer;
    head->iface = &longer.iface;
    ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
    EXPECT_LE(c.worst(), bound);
    EXPECT_GT(paged->measured().cpu.bytes, 0u);
}

TEST(cpu_lane, a_table_without_attention_is_refused) {
    forward_case c(long_history());
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, own_lane(2));
    c.begin_batch();
    kvp_op_head * head = reinterpret_cast<kvp_op_head *>(c.op);
    kvp_iface older = *head->iface;
    older.size = offsetof(kvp_iface, fail);
    head->iface = &older;
    EXPECT_EQ(c.run(g, *paged), -EPROTO);
}
