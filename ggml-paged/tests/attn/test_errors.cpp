// Errors in the middle of a pass: every thread comes back, the result is zeros, and the
// error stays.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "fixture.h"

namespace {

constexpr uint32_t PAGE = 16, PAGES = 12, HEADS = 4;

const kvp_layer_desc LAYER = {0, PAGE * PAGES, 2, 64, 64, KVP_F16, KVP_Q8_0};

// The n-th operation from now on fails.
struct fault_at {
    std::atomic<int> left{INT32_MAX};

    static int hit(void * user, int, uint64_t, size_t) {
        return static_cast<fault_at *>(user)->left.fetch_sub(1) == 0 ? -EIO : 0;
    }
};

batch_args full_batch(uint32_t n_q) {
    batch_args a;
    for (uint32_t i = 0; i < PAGE * PAGES; i++) {
        a.pos.push_back((int32_t) i);
        a.seqs.push_back(1);
    }
    for (uint32_t i = 0; i < n_q; i++) {
        // New rows go to pages all over the place.
        a.q_cell.push_back(i * 7 % (PAGE * PAGES));
        a.q_pos.push_back(PAGE * PAGES);
        a.q_seq.push_back(0);
    }
    return a;
}

void fill(small_pager & pager) {
    const std::vector<float> row(LAYER.kv_heads * LAYER.dk, 0.5f);
    for (uint32_t c = 0; c < LAYER.n_cells; c++) {
        pager.write(0, c, row, row);
    }
}

// run_with_fault returns whether the fault came up.
bool run_with_fault(uint32_t n_q, uint32_t threads, int at) {
    fault_at    fault;
    small_pager pager(PAGE, 2, {LAYER}, fault_at::hit, &fault);
    fill(pager);
    const batch_args     a = full_batch(n_q);
    const kvp_batch_desc d = a.desc();
    const kvp_params     params = {0, HEADS, 1.0f, 0, 0, 0};
    kvp_batch * b;
    kvp_op *    op;
    EXPECT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
    EXPECT_EQ(kvp_op_new(b, &params, &op), 0) << kvp_last_error();
    op_args args(LAYER, HEADS, n_q, true);
    fault.left = at;
    const int result = forward(op, args.io(LAYER, HEADS), threads);
    if (fault.left >= 0) {
        EXPECT_EQ(result, 0) << kvp_last_error();
        return false;
    }
    // An I/O thread may have hit the fault on a page that no thread waited for any more.
    if (result == 0) {
        return true;
    }
    EXPECT_EQ(result, -EIO) << kvp_last_error();
    EXPECT_EQ(kvp_pager_error(pager.p, nullptr), -EIO);
    EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
    std::fill(args.out.begin(), args.out.end(), -7.0f);
    EXPECT_EQ(forward(op, args.io(LAYER, HEADS), threads), -EIO) << "the error stays";
    EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
    return true;
}

} // namespace

TEST(errors, a_fault_at_any_operation_ends_a_decode) {
    for (uint32_t threads : {1u, 3u}) {
        int n = 0;
        while (run_with_fault(1, threads, n)) {
            n++;
        }
        EXPECT_GE(n, (int) PAGES - 2) << "most pages had to be read";
    }
}

TEST(errors, a_fault_at_any_operation_ends_a_prefill) {
    for (uint32_t threads : {1u, 3u}) {
        int n = 0;
        while (run_with_fault(24, threads, n)) {
            n++;
        }
        EXPECT_GE(n, (int) PAGES - 2) << "most pages had to be read";
    }
}

namespace {

struct good_op {
    small_pager pager{PAGE, 2, {LAYER}};
    batch_args  batch = full_batch(3);
    op_args     args{LAYER, HEADS, 3, true};
    kvp_op *    op = nullptr;

    good_op() {
        fill(pager);
        const kvp_batch_desc d = batch.desc();
        const kvp_params     params = {0, HEADS, 1.0f, 0, 0, 0};
        kvp_batch * b;
        EXPECT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
        EXPECT_EQ(kvp_op_new(b, &params, &op), 0);
    }

    void expect_refused(const char * word) {
        EXPECT_NE(std::strstr(kvp_last_error(), word), nullptr) << kvp_last_error();
        EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
        EXPECT_EQ(kvp_pager_error(pager.p, nullptr), -EINVAL);
    }
};

} // namespace

TEST(errors, scratch_memory_that_is_too_small_is_refused) {
    good_op g;
    const kvp_io io = g.args.io(LAYER, HEADS);
    std::vector<uint8_t> work(kvp_cpu_work_bytes(g.op, 1) - 1);
    EXPECT_EQ(kvp_cpu_forward(g.op, &io, 0, 1, work.data(), work.size()), -EINVAL);
    g.expect_refused("scratch");
}

TEST(errors, k_without_v_is_refused) {
    good_op g;
    g.args.v_new.clear();
    EXPECT_EQ(forward(g.op, g.args.io(LAYER, HEADS), 2), -EINVAL);
    g.expect_refused("k_new");
}

TEST(errors, rows_without_cells_are_refused) {
    small_pager pager(PAGE, 2, {LAYER});
    batch_args a = full_batch(2);
    a.q_cell.clear();
    const kvp_batch_desc d = a.desc();
    const kvp_params     params = {0, HEADS, 1.0f, 0, 0, 0};
    kvp_batch * b;
    kvp_op *    op;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    ASSERT_EQ(kvp_op_new(b, &params, &op), 0);
    op_args with(LAYER, HEADS, 2, true);
    EXPECT_EQ(forward(op, with.io(LAYER, HEADS), 1), -EINVAL);
    EXPECT_NE(std::strstr(kvp_last_error(), "cells"), nullptr) << kvp_last_error();
}
