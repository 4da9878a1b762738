// The attention kernels under the emulator against f64.
#include <gtest/gtest.h>

#include <cmath>

#include "attention_case.h"

namespace {

// Of max|V|. The promise of the op is 1e-4, and 1e-3 on tensor cores.
double bound(bool mma) { return mma ? 1e-3 : 1e-5; }

// The kernels that a shape is for: those without tensor cores, and with them if they differ.
std::vector<bool> with_mma(const case_shape & s) {
    return s.n_q * s.group > 16 ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

std::string name_of(const std::string & name, bool mma) { return name + (mma ? ", tensor cores" : ""); }

const int types[] = {KVP_F16, KVP_Q8_0, KVP_Q4_0};

void expect_exact(const case_shape & shape, const kernel_options & options, const std::string & name) {
    const attention_case c(shape);
    const std::vector<double> want = c.exact();
    for (const bool mma : with_mma(shape)) {
        kernel_options o = options;
        o.mma = mma;
        std::string failure;
        const std::vector<float> got = run_kernels(c, o, &failure);
        ASSERT_EQ(failure, "") << name_of(name, mma);
        EXPECT_LE(worst(c, got, want), bound(mma)) << name_of(name, mma);
    }
}

struct head_dims {
    uint32_t dk, dv;
};

class attention : public testing::TestWithParam<head_dims> {};

TEST_P(attention, every_pair_of_types_in_decode_and_prefill) {
    for (int k : types) {
        for (int v : types) {
            if (GetParam().dk % 32 && (k != KVP_F16 || v != KVP_F16)) {
                continue;
            }
            for (uint32_t n_q : {1u, 5u}) {
                case_shape s;
                s.dk = GetParam().dk;
                s.dv = GetParam().dv;
                s.group = 4;
                s.kv_heads = n_q == 1 ? 2 : 1;
                s.n_q = n_q;
                s.cells = 131;
                s.type_k = k;
                s.type_v = v;
                s.poison = true;
                s.mean_v = 0.4f;
                kernel_options o;
                o.span = n_q == 1 ? 128 : 0;
                expect_exact(s, o, "types " + std::to_string(k) + " " + std::to_string(v) + " n_q " + std::to_string(n_q));
            }
        }
    }
}

TEST_P(attention, every_number_of_rows) {
    for (uint32_t group : {1u, 2u, 4u, 5u, 7u, 8u, 16u, 17u}) {
        case_shape s;
        s.dk = GetParam().dk;
        s.dv = GetParam().dv;
        s.group = group;
        s.cells = 70;
        s.poison = true;
        expect_exact(s, {}, "group " + std::to_string(group));
    }
}

INSTANTIATE_TEST_SUITE_P(head_dims, attention,
                         testing::Values(head_dims{64, 64}, head_dims{80, 80}, head_dims{96, 96}, head_dims{128, 128},
                                         head_dims{256, 256}, head_dims{512, 512}, head_dims{576, 512}),
                         [](const auto & info) { return std::to_string(info.param.dk) + "_" + std::to_string(info.param.dv); });

// What a case is made of, by the bits of a number: every mask with every kernel.
case_shape mask_shape(uint32_t kind) {
    case_shape s;
    s.group = 2;
    s.cells = 150;
    s.poison = true;
    switch (kind) {
    case 0: break;
    case 1: s.window = 20; break;
    case 2: s.chunk = 32; break;
    case 3: s.seqs = 5; break;
    case 4: s.excepted = true; break;
    case 5: s.blind = true; break;
    case 6: s.seqs = 64; s.window = 40; s.excepted = true; s.blind = true; break;
    case 7: s.seqs = 3; s.foreign_infinity = true; s.window = 60; break;
    }
    return s;
}

TEST(attention_masks, every_mask_in_every_kernel) {
    for (uint32_t kind = 0; kind < 8; ++kind) {
        for (uint32_t n_q : {1u, 2u, 8u, 37u}) {
            case_shape s = mask_shape(kind);
            s.n_q = n_q;
            s.seed = kind * 100 + n_q;
            const attention_case c(s);
            if (s.foreign_infinity) {
                continue;  // below
            }
            expect_exact(s, {}, "mask " + std::to_string(kind) + " n_q " + std::to_string(n_q));
        }
    }
}

// A cell that another query sees may hold an infinity: it is not in the result of a query
// that does not see it, even where both are in one tile.
TEST(attention_masks, infinity_of_another_query_stays_out) {
    for (const auto & [kind, n_q] : {std::pair{7u, 2u}, {7u, 8u}, {7u, 37u}, {0u, 37u}}) {
        case_shape s = mask_shape(kind);
        s.foreign_infinity = true;
        s.n_q = n_q;
        const attention_case c(s);
        for (const bool mma : with_mma(s)) {
            kernel_options o;
            o.mma = mma;
            std::string failure;
            const std::vector<float>  got = run_kernels(c, o, &failure);
            const std::vector<double> want = c.exact();
            ASSERT_EQ(failure, "");
            uint32_t finite = 0;
            for (size_t i = 0; i < want.size(); ++i) {
                if (std::isfinite(want[i])) {
                    ++finite;
                    ASSERT_LE(std::fabs(got[i] - want[i]), bound(mma) * c.v_max) << i;
                } else {
                    ASSERT_FALSE(std::isfinite(got[i])) << i;
                }
            }
            // The case is about something: there are infinities, and with many queries rows without.
            EXPECT_LT(finite, want.size());
            EXPECT_TRUE(kind != 0 || finite > want.size() / 4) << finite;
        }
    }
}

TEST(attention_masks, a_query_that_sees_nothing_gives_zeros) {
    for (uint32_t n_q : {1u, 3u, 20u}) {
        case_shape s;
        s.n_q = n_q;
        s.blind = true;
        s.sinks = n_q == 3;
        s.poison = true;
        const attention_case c(s);
        for (const bool mma : with_mma(s)) {
            kernel_options o;
            o.mma = mma;
            std::string failure;
            const std::vector<float> got = run_kernels(c, o, &failure);
            ASSERT_EQ(failure, "");
            for (size_t i = got.size() - size_t(c.heads) * s.dv; i < got.size(); ++i) {
                ASSERT_EQ(got[i], 0.0f);
            }
        }
    }
}

TEST(attention_scores, softcap_alibi_and_sinks) {
    for (uint32_t bits = 1; bits < 8; ++bits) {
        for (uint32_t n_q : {1u, 19u}) {
            case_shape s;
            s.group = 3;
            s.n_q = n_q;
            s.softcap = bits & 1 ? 5.0f : 0.0f;
            s.max_bias = bits & 2 ? 8.0f : 0.0f;
            s.sinks = bits & 4;
            s.excepted = true;
            expect_exact(s, {}, "bits " + std::to_string(bits) + " n_q " + std::to_string(n_q));
        }
    }
}

// Scores of a hundred and more take all bits of Q, and Q may be larger than a half can be.
TEST(attention_scores, large_scores_and_queries) {
    for (const auto & [size_q, size_k] : {std::pair{40.0f, 1.0f}, {4e5f, 1e-4f}, {1e-4f, 4e5f / 16}}) {
        for (const int k : {KVP_F16, KVP_Q8_0}) {
            case_shape s;
            s.n_q = 20;
            s.kv_heads = 1;
            s.type_k = k;
            s.size_q = size_q;
            s.size_k = size_k;
            expect_exact(s, {}, "queries of " + std::to_string(size_q) + ", type " + std::to_string(k));
        }
    }
}

// However weights are rounded, they add up to what their sum says.
TEST(attention_scores, equal_values_come_out_as_they_are) {
    case_shape s;
    s.n_q = 20;
    s.mean_v = 1;
    s.size_v = 0;
    const attention_case c(s);
    for (const bool mma : with_mma(s)) {
        kernel_options o;
        o.mma = mma;
        std::string failure;
        EXPECT_LE(worst(c, run_kernels(c, o, &failure), c.exact()), 1e-6) << name_of("", mma);
        EXPECT_EQ(failure, "");
    }
}

// Weights of 2^-26, of which a long context has many, are not lost beside one of 1.
TEST(attention_scores, small_weights_count) {
    case_shape s;
    s.n_q = 20;
    s.kv_heads = 1;
    s.mean_v = 3;
    s.size_k = 0;
    attention_case c(s);
    std::fill(c.seqs.begin(), c.seqs.end(), 1);
    std::fill(c.q_except.begin(), c.q_except.end(), 1);
    std::vector<float> k(s.dk), v(s.dv);
    k[0] = 18 * std::sqrt(float(s.dk));
    kvp_quantize_row(s.type_k, k.data(), c.k.data(), s.dk);
    kvp_quantize_row(s.type_v, v.data(), c.v.data(), s.dv);
    for (size_t i = 0; i < c.q.size(); i += s.dk) {
        c.q[i] = 1;
    }
    const std::vector<double> want = c.exact();
    EXPECT_GT(want[0], 1e-6);
    for (const bool mma : with_mma(s)) {
        kernel_options o;
        o.mma = mma;
        std::string failure;
        const std::vector<float> got = run_kernels(c, o, &failure);
        EXPECT_EQ(failure, "");
        for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(got[i], want[i], 1e-3 * want[i]) << name_of("", mma);
        }
    }
}

TEST(attention_splits, any_number_of_splits) {
    for (uint32_t n_q : {1u, 24u}) {
        case_shape s;
        s.dk = s.dv = 80;
        s.n_q = n_q;
        s.cells = 300;
        s.window = 100;  // some splits see nothing
        s.poison = true;
        for (uint32_t span : {300u, 299u, 128u, 64u, 17u, 1u}) {
            if (n_q > 1 && span == 1) {
                continue;  // slow, and decode has it
            }
            kernel_options o;
            o.span = span;
            expect_exact(s, o, "span " + std::to_string(span));
            o.one_by_one = true;
            expect_exact(s, o, "merged one by one, span " + std::to_string(span));
            o.resume = true;
            expect_exact(s, o, "resumed, span " + std::to_string(span));
        }
    }
}

TEST(attention_order, lane_order_changes_nothing) {
    for (uint32_t n_q : {1u, 4u, 20u}) {
        case_shape s;
        s.group = 4;
        s.n_q = n_q;
        s.cells = 140;
        s.seqs = 2;
        s.poison = true;
        const attention_case c(s);
        for (const bool mma : with_mma(s)) {
            std::vector<float> first;
            for (uint64_t seed = 0; seed < 6; ++seed) {
                kernel_options o;
                o.span = 64;
                o.mma = mma;
                o.order.seed = seed;
                std::string failure;
                const std::vector<float> got = run_kernels(c, o, &failure);
                ASSERT_EQ(failure, "");
                first = first.empty() ? got : first;
                ASSERT_EQ(got, first) << name_of("seed " + std::to_string(seed), mma);
            }
        }
    }
}

// The full flag skips the predicates: the same bits where everything is visible.
TEST(attention_full, same_bits_as_with_predicates) {
    for (uint32_t n_q : {1u, 20u}) {
        case_shape s;
        s.n_q = n_q;
        s.cells = 97;
        s.excepted = true;
        s.max_bias = n_q == 1 ? 0.0f : 4.0f;
        attention_case c(s);
        std::fill(c.seqs.begin(), c.seqs.end(), 1);
        std::fill(c.q_except.begin(), c.q_except.end(), 1);
        for (const bool mma : with_mma(s)) {
            std::string failure;
            kernel_options o;
            o.mma = mma;
            const std::vector<float> mixed = run_kernels(c, o, &failure);
            o.full = true;
            EXPECT_EQ(run_kernels(c, o, &failure), mixed);
            EXPECT_LE(worst(c, mixed, c.exact()), bound(mma));
            EXPECT_EQ(failure, "");
        }
    }
}

} // namespace
