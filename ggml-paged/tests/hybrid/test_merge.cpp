// Merging partials on the host against f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "hybrid/hybrid.h"

using namespace kvp;

namespace {

// The scores and values of one row, cut into partials.
struct pieces {
    std::vector<std::vector<float>> blocks;
    std::vector<double>             answer;
    double                          v_max = 0;
};

pieces make_pieces(std::mt19937_64 & rng, uint32_t pages, uint32_t cells, uint32_t dv, double spread, double mean) {
    std::normal_distribution<double> normal(0, 1);
    pieces p;
    std::vector<double> num(dv, 0);
    double den = 0, m_max = -INFINITY;
    std::vector<float> scores(pages * cells);
    for (float & s : scores) {
        s   = (float) (spread * normal(rng));
        m_max = std::max(m_max, (double) s);
    }
    for (uint32_t i = 0; i < pages; i++) {
        std::vector<float> block(partial_floats(1, dv));
        std::vector<double> acc(dv, 0);
        double l = 0, m = -INFINITY;
        for (uint32_t c = 0; c < cells; c++) {
            m = std::max(m, (double) scores[i * cells + c]);
        }
        for (uint32_t c = 0; c < cells; c++) {
            const double s = scores[i * cells + c], e = std::exp(s - m), g = std::exp(s - m_max);
            l += e;
            den += g;
            for (uint32_t d = 0; d < dv; d++) {
                const double v = mean + normal(rng);
                p.v_max = std::max(p.v_max, std::fabs(v));
                acc[d] += e * v;
                num[d] += g * v;
            }
        }
        block[0] = (float) m;
        block[1] = (float) l;
        std::copy(acc.begin(), acc.end(), block.begin() + 2);
        p.blocks.push_back(block);
    }
    for (double n : num) {
        p.answer.push_back(n / den);
    }
    return p;
}

double merged_error(pieces & p, uint32_t dv) {
    std::vector<float> into(partial_floats(1, dv)), out(dv);
    partial_clear(partial_at(into.data(), 1, dv));
    for (std::vector<float> & b : p.blocks) {
        partial_merge(partial_at(into.data(), 1, dv), partial_at(b.data(), 1, dv));
    }
    partial_finish(partial_at(into.data(), 1, dv), nullptr, 1, out.data());
    double worst = 0;
    for (uint32_t d = 0; d < dv; d++) {
        worst = std::max(worst, std::fabs(out[d] - p.answer[d]));
    }
    return worst / p.v_max;
}

}  // namespace

TEST(Merge, AnyOrderIsWithinRounding) {
    std::mt19937_64 rng(1);
    double worst = 0;
    for (uint32_t pages : {1u, 2u, 7u, 64u, 1000u}) {
        for (double spread : {0.0, 1.0, 5.0, 30.0}) {
            for (double mean : {0.0, 1.0}) {
                pieces p = make_pieces(rng, pages, 16, 5, spread, mean);
                worst = std::max(worst, merged_error(p, 5));
                // Ascending maxima rescale the sums at every step: the worst order.
                std::sort(p.blocks.begin(), p.blocks.end(), [](auto & a, auto & b) { return a[0] < b[0]; });
                worst = std::max(worst, merged_error(p, 5));
                std::shuffle(p.blocks.begin(), p.blocks.end(), rng);
                worst = std::max(worst, merged_error(p, 5));
            }
        }
    }
    RecordProperty("worst_relative_error", std::to_string(worst));
    EXPECT_LT(worst, 1e-5);
}

TEST(Merge, EmptyRowsChangeNothing) {
    // The content of an empty row's l and acc must not matter.
    std::vector<float> into = {1.5f, -INFINITY, 2.0f, 0.0f, 3.0f, 4.0f, 0.0f, 0.0f};
    const std::vector<float> before = into;
    std::vector<float> from = {-INFINITY, -INFINITY, NAN, 7.0f, NAN, NAN, INFINITY, 1.0f};
    partial_merge(partial_at(into.data(), 2, 2), partial_at(from.data(), 2, 2));
    EXPECT_EQ(into, before);
    // And an empty row takes over the other side's values, to the bit.
    std::vector<float> some = {0.25f, -3.0f, 2.0f, 5.0f, 1.0f, 1.0f, 6.0f, 7.0f};
    partial_merge(partial_at(into.data(), 2, 2), partial_at(some.data(), 2, 2));
    EXPECT_EQ(into[1], -3.0f);
    EXPECT_EQ(into[3], 5.0f);
    EXPECT_EQ(into[6], 6.0f);
    EXPECT_EQ(into[7], 7.0f);
}

TEST(Merge, NaNIsNotLost) {
    for (int side = 0; side < 2; side++) {
        std::vector<float> a = {side == 0 ? NAN : 1.0f, 1.0f, 1.0f}, b = {side == 1 ? NAN : 1.0f, 1.0f, 1.0f};
        partial_merge(partial_at(a.data(), 1, 1), partial_at(b.data(), 1, 1));
        float out = 0;
        partial_finish(partial_at(a.data(), 1, 1), nullptr, 1, &out);
        EXPECT_TRUE(std::isnan(out)) << side;
    }
}

TEST(Merge, ExtremeScoresStayFinite) {
    std::vector<float> a = {-3e38f, 1.0f, 2.0f}, b = {3e38f, 1.0f, 5.0f};
    partial_merge(partial_at(a.data(), 1, 1), partial_at(b.data(), 1, 1));
    float out = 0;
    partial_finish(partial_at(a.data(), 1, 1), nullptr, 1, &out);
    EXPECT_EQ(out, 5.0f);
}

TEST(Merge, SinksCountOnceInTheDenominator) {
    // Rows 0..3 are heads 0, 1, 0, 1.
    const float  sinks[2] = {0.5f, -INFINITY};
    std::vector<float> p(partial_floats(4, 1));
    const kvp_partial part = partial_at(p.data(), 4, 1);
    partial_clear(part);
    part.m[0] = 0.25f, part.l[0] = 2, part.acc[0] = 3;
    part.m[1] = 0.25f, part.l[1] = 2, part.acc[1] = 3;
    part.m[2] = -90.0f, part.l[2] = 2, part.acc[2] = 3;
    std::vector<float> out(4, -1);
    partial_finish(part, sinks, 2, out.data());
    EXPECT_NEAR(out[0], 3 / (2 + std::exp(0.5 - 0.25)), 1e-6);
    EXPECT_NEAR(out[1], 1.5, 1e-6);
    EXPECT_NEAR(out[2], 3 / (2 + std::exp(90.5)), 1e-30);
    EXPECT_EQ(out[3], 0.0f);  // sees nothing
    partial_clear(part);
    partial_finish(part, sinks, 2, out.data());
    EXPECT_EQ(out, std::vector<float>(4, 0.0f));
}

TEST(Merge, SizesOfBlocks) {
    EXPECT_EQ(partial_floats(0, 128), 0u);
    EXPECT_EQ(partial_floats(3, 5), 21u);
    EXPECT_EQ(partial_floats(1u << 31, 510), (size_t) (1ull << 40));  // no overflow of 32 bits
    std::vector<float> none;
    partial_clear(partial_at(none.data(), 0, 128));
}
