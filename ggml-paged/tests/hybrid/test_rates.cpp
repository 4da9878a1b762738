// Meters of the lanes' rates.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "hybrid/hybrid.h"

using namespace kvp;

TEST(RateMeter, StartsFromThePriorAndConverges) {
    rate_meter m(1e9);
    EXPECT_EQ(m.rate(), 1e9);
    for (int i = 0; i < 40; i++) {
        m.add(4000000, 1000000);  // 4e9 bytes/s
    }
    EXPECT_NEAR(m.mean(), 4e9, 4e7);
    EXPECT_NEAR(m.rate(), 4e9, 4e9 * rate_meter::band);
}

TEST(RateMeter, SmallChangesDoNotShow) {
    rate_meter m(2e9);
    std::mt19937_64  rng(3);
    std::set<double> shown;
    for (int i = 0; i < 10000; i++) {
        const double rate = 2e9 * (1 + 0.1 * ((double) (rng() % 2001) / 1000 - 1));
        m.add(1 << 20, (uint64_t) (1e9 * (1 << 20) / rate));
        shown.insert(m.rate());
    }
    EXPECT_EQ(shown.size(), 1u);
    // A change beyond the band does.
    for (int i = 0; i < 20; i++) {
        m.add(1000000, 1000000);
    }
    EXPECT_NEAR(m.rate(), 1e9, 1e9 * rate_meter::band * 1.01);
}

TEST(RateMeter, OneAbsurdSampleDoesNotDecide) {
    rate_meter m(1e9);
    m.add(1, UINT64_MAX);
    EXPECT_GT(m.rate(), 1e9 / 4);
    rate_meter n(1e9);
    n.add(UINT64_MAX, 1);
    EXPECT_LT(n.rate(), 1e9 * 2);
    n.add(0, 100);
    n.add(100, 0);
    EXPECT_LT(n.rate(), 1e9 * 2);
}

TEST(RateMeter, StaysInItsBounds) {
    rate_meter slow(1e9), fast(1e9);
    for (int i = 0; i < 2000; i++) {
        slow.add(1, 1000000000000);
        fast.add(1000000000000, 1);
    }
    EXPECT_GE(slow.rate(), rate_meter::rate_min);
    EXPECT_LE(fast.rate(), rate_meter::rate_max);
    EXPECT_TRUE(std::isfinite(slow.mean()) && std::isfinite(fast.mean()));
    EXPECT_EQ(rate_meter(INFINITY).rate(), rate_meter::rate_max);
    EXPECT_EQ(rate_meter(1).rate(), rate_meter::rate_min);
}

TEST(RateMeter, NoLaneStaysNoLane) {
    for (double prior : {0.0, -1.0, (double) NAN}) {
        rate_meter m(prior);
        m.add(1000, 1000);
        m.rest();
        EXPECT_EQ(m.rate(), 0.0);
        EXPECT_EQ(m.mean(), 0.0);
    }
}

TEST(RateMeter, AnUnusedLaneIsTriedAgain) {
    rate_meter m(8e9);
    for (int i = 0; i < 50; i++) {
        m.add(1000000, 10000000);
    }
    EXPECT_LT(m.rate(), 2e8);
    for (int i = 0; i < 1000; i++) {
        m.rest();
    }
    EXPECT_NEAR(m.rate(), 8e9, 8e9 * (rate_meter::band + 0.01));
}

TEST(LaneMeters, RowsHaveRatesOfTheirOwn) {
    lane_meters::priors p;
    p.cpu = 16e9, p.cpu_rows = 8;
    lane_meters m(p);
    EXPECT_EQ(m.rates(1).cpu, 16e9);
    EXPECT_EQ(m.rates(8).cpu, 16e9);
    EXPECT_NEAR(m.rates(64).cpu, 2e9, 1);
    hybrid_measured got{};
    got.cpu = {1000000, 1000000};
    for (int i = 0; i < 40; i++) {
        m.update(64, got);
    }
    EXPECT_NEAR(m.rates(64).cpu, 1e9, 2e8);
    EXPECT_EQ(m.rates(1).cpu, 16e9);
    EXPECT_EQ(m.rates(64).h2d, p.h2d);
    EXPECT_GT(m.rates(0).cpu, 0);
    EXPECT_GT(m.rates(UINT32_MAX).cpu, 0);
}
