// What one sequence or op does must not show in another's result.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "fixture.h"
#include "reference.h"

namespace {

std::vector<float> random_floats(std::mt19937 & random, size_t n) {
    std::vector<float> out(n);
    for (float & x : out) {
        x = (int) (random() % 2001 - 1000) / 1000.0f;
    }
    return out;
}

// two_slots interleaves the cells of two sequences in the same pages. Every query sees one
// of them.
batch_args two_slots(uint32_t n_cells, uint32_t n_q) {
    batch_args a;
    for (uint32_t i = 0; i < n_cells; i++) {
        a.pos.push_back((int32_t) i / 2);
        a.seqs.push_back(i % 2 ? 1ull << 40 : 1ull << 3);
    }
    for (uint32_t i = 0; i < n_q; i++) {
        a.q_pos.push_back((int32_t) n_cells);
        a.q_seq.push_back(i % 2 ? 40 : 3);
    }
    return a;
}

// attend_with computes n_q queries over cells of which the odd ones hold a value.
std::vector<float> attend_with(const kvp_layer_desc & layer, uint32_t n_q, uint32_t heads, float odd_k, float odd_v) {
    std::mt19937 random(7);
    small_pager pager(32, 3, {layer});
    for (uint32_t c = 0; c < layer.n_cells; c++) {
        std::vector<float> k = random_floats(random, layer.kv_heads * layer.dk), v = random_floats(random, layer.kv_heads * layer.dv);
        if (c % 2) {
            k.assign(k.size(), odd_k);
            v.assign(v.size(), odd_v);
        }
        pager.write(0, c, k, v);
    }
    const batch_args     a = two_slots(layer.n_cells, n_q);
    const kvp_batch_desc d = a.desc();
    const kvp_params     params = {0, heads, 0.3f, 0, 0, 0};
    kvp_batch * b;
    kvp_op *    op;
    EXPECT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    EXPECT_EQ(kvp_op_new(b, &params, &op), 0);
    op_args args(layer, heads, n_q, false);
    args.q = random_floats(random, args.q.size());
    EXPECT_EQ(forward(op, args.io(layer, heads), 2), 0) << kvp_last_error();
    return args.out;
}

} // namespace

TEST(isolation, infinities_of_one_slot_do_not_reach_another) {
    const kvp_layer_desc layer = {0, 160, 2, 64, 64, KVP_F16, KVP_F16};
    for (uint32_t n_q : {2u, 6u, 15u, 40u}) {
        for (uint32_t heads : {2u, 6u, 16u}) {
            const auto good = attend_with(layer, n_q, heads, 0.1f, 0.1f);
            for (auto [k, v] : {std::pair<float, float>{0.1f, INFINITY}, {INFINITY, 0.1f}, {NAN, NAN}, {-INFINITY, -INFINITY}}) {
                const auto bad = attend_with(layer, n_q, heads, k, v);
                for (size_t i = 0; i < good.size(); i++) {
                    const uint32_t query = (uint32_t) (i / (heads * layer.dv));
                    if (query % 2 == 0) {
                        ASSERT_NEAR(bad[i], good[i], 1e-6) << n_q << " " << heads << " " << k << " " << v;
                    }
                }
            }
        }
    }
}

TEST(isolation, scores_of_minus_infinity_count_nothing) {
    // One cell has a score of -inf; as the only one it gives zeros, with another nothing.
    const kvp_layer_desc layer = {0, 32, 1, 32, 32, KVP_F16, KVP_F16};
    for (uint32_t n_q : {1u, 20u}) {
        for (uint32_t used : {1u, 2u}) {
            small_pager pager(32, 1, {layer});
            pager.write(0, 0, std::vector<float>(32, -INFINITY), std::vector<float>(32, 3.0f));
            pager.write(0, 1, std::vector<float>(32, 0.5f), std::vector<float>(32, 2.0f));
            batch_args a;
            a.pos  = {0, 1};
            a.seqs = {1, used == 2 ? 1ull : 0ull};
            a.q_pos.assign(n_q, 1);
            a.q_seq.assign(n_q, 0);
            const kvp_batch_desc d = a.desc();
            const kvp_params     params = {0, 1, 1.0f, 0, 0, 0};
            kvp_batch * b;
            kvp_op *    op;
            ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
            ASSERT_EQ(kvp_op_new(b, &params, &op), 0);
            op_args args(layer, 1, n_q, false);
            args.q.assign(args.q.size(), 1.0f);
            ASSERT_EQ(forward(op, args.io(layer, 1), 1), 0);
            EXPECT_EQ(args.out, std::vector<float>(args.out.size(), used == 2 ? 2.0f : 0.0f));
        }
    }
}

TEST(isolation, the_later_of_two_rows_for_a_cell_counts) {
    const kvp_layer_desc layer = {0, 32, 1, 32, 32, KVP_F16, KVP_F16};
    for (uint32_t threads : {1u, 2u, 4u}) {
        small_pager pager(16, 1, {layer});
        batch_args a;
        a.pos.assign(32, 0);
        a.seqs.assign(32, 0);
        a.seqs[20] = 1;
        a.q_pos  = {0, 0, 0};
        a.q_seq  = {0, 0, 0};
        a.q_cell = {20, 3, 20};
        const kvp_batch_desc d = a.desc();
        const kvp_params     params = {0, 1, 1.0f, 0, 0, 0};
        kvp_batch * b;
        kvp_op *    op;
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
        ASSERT_EQ(kvp_op_new(b, &params, &op), 0);
        op_args args(layer, 1, 3, true);
        for (size_t i = 0; i < args.v_new.size(); i++) {
            args.v_new[i] = (float) (i / 32);
        }
        ASSERT_EQ(forward(op, args.io(layer, 1), threads), 0);
        EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 2.0f));
    }
}

TEST(isolation, ops_at_the_same_time_agree_with_one_after_the_other) {
    // Two teams on two layers of one pager that has one frame, each op several times in a
    // row, so that a pass begins while threads are still leaving the one before.
    const kvp_layer_desc layer = {0, 160, 2, 64, 64, KVP_Q8_0, KVP_F16};
    constexpr uint32_t HEADS = 6, ROUNDS = 8;
    for (uint32_t n_q : {2u, 20u}) {
        std::mt19937 random(11);
        small_pager pager(16, 1, {layer, layer});
        for (uint32_t c = 0; c < layer.n_cells; c++) {
            for (uint32_t l = 0; l < 2; l++) {
                pager.write(l, c, random_floats(random, layer.kv_heads * layer.dk), random_floats(random, layer.kv_heads * layer.dv));
            }
        }
        const batch_args     a = two_slots(layer.n_cells, n_q);
        const kvp_batch_desc d = a.desc();
        kvp_batch * b;
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
        kvp_op * ops[2];
        std::vector<op_args> args(2, op_args(layer, HEADS, n_q, false));
        std::vector<std::vector<float>> want;
        for (uint32_t l = 0; l < 2; l++) {
            const kvp_params params = {l, HEADS, 0.2f, 0, 0, 0};
            ASSERT_EQ(kvp_op_new(b, &params, &ops[l]), 0);
            args[l].q = random_floats(random, args[l].q.size());
            ASSERT_EQ(forward(ops[l], args[l].io(layer, HEADS), 1), 0) << kvp_last_error();
            want.push_back(args[l].out);
            std::fill(args[l].out.begin(), args[l].out.end(), NAN);
        }
        std::vector<std::thread> threads;
        std::vector<std::vector<uint8_t>> work(2, std::vector<uint8_t>(kvp_cpu_work_bytes(ops[0], 3)));
        std::atomic<int> errors{0};
        for (uint32_t i = 0; i < 6; i++) {
            threads.emplace_back([&, i] {
                const kvp_io io = args[i / 3].io(layer, HEADS);
                for (uint32_t round = 0; round < ROUNDS; round++) {
                    errors += kvp_cpu_forward(ops[i / 3], &io, i % 3, 3, work[i / 3].data(), work[i / 3].size()) != 0;
                }
            });
        }
        for (std::thread & t : threads) {
            t.join();
        }
        EXPECT_EQ(errors, 0);
        EXPECT_EQ(args[0].out, want[0]);
        EXPECT_EQ(args[1].out, want[1]);
    }
}
