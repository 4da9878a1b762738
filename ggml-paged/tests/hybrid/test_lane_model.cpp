// Simulated time: cold pages through both lanes at >= 0.85 of the link's and the CPU's rates
// together, with the real planner.
#include <gtest/gtest.h>

#include <cmath>

#include "hybrid/hybrid.h"
#include "lane_simulation.h"

using namespace kvp;

namespace {

struct setting {
    double   link, cpu;
    size_t   pages;
    uint32_t slots, workers;
    bool     hot;
};

// Rate of the cold pages over (link + CPU).
double efficiency(const setting & s, double disk, lane_rates * rates_out = nullptr) {
    const uint64_t   bytes = 8 << 20;  // 2048 cells of 4 KiB
    const lane_rates rates = {s.link, 20 * s.link, s.cpu, disk, 8000, 5000};
    std::vector<plan_page> pages;
    for (uint32_t i = 0; i < s.pages; i++) {
        pages.push_back({{i, 2048, KVP_FULL}, disk > 0 ? residency::spilled : residency::host_frame, bytes});
    }
    if (s.hot) {
        pages.push_back({{(uint32_t) s.pages, 2048, KVP_FULL}, residency::device_hot, bytes});
    }
    hybrid_plan p;
    EXPECT_EQ(hybrid_plan_make({pages.data(), pages.size(), rates, s.slots, s.workers, 32, 128}, &p), 0);
    if (rates_out != nullptr) {
        *rates_out = rates;
    }
    const double total = simulate(p.steps, rates, s.slots, s.workers, 32, 128).total;
    return (double) (s.pages * bytes) * 1e9 / total / (s.link + s.cpu);
}

}  // namespace

TEST(LaneModel, HybridReachesTheSumOfTheLanes) {
    double worst = 1;
    for (double link : {3e9, 12e9, 25e9, 55e9}) {
        for (double share : {0.1, 0.3, 0.7, 1.0, 2.0}) {
            for (uint32_t workers : {1u, 2u, 4u, 8u}) {
                for (uint32_t slots : {2u, 3u, 4u}) {
                    for (bool hot : {false, true}) {
                        // 128k tokens and more, and at least some pages for each worker.
                        const setting s{link, share * link, std::max<size_t>(64, 24 * workers), slots, workers, hot};
                        const double  e = efficiency(s, 0);
                        worst = std::min(worst, e);
                        EXPECT_GE(e, 0.85) << "link " << link << " cpu " << s.cpu << " workers " << workers << " slots " << slots;
                        EXPECT_LE(e, 1.0);
                    }
                }
            }
        }
    }
    printf("cold pages / (link + CPU): worst %.3f\n", worst);
}

TEST(LaneModel, ASlowDiskIsTheBound) {
    // Spilled pages cannot be faster than they are read, and should be nearly as fast.
    const setting s{12e9, 8e9, 128, 2, 4, false};
    const double  e = efficiency(s, 4e9);
    EXPECT_LE(e * 20e9, 4e9);
    EXPECT_GE(e * 20e9, 0.95 * 4e9);
}

TEST(LaneModel, OneLaneAloneDoesWorse) {
    // The bound means something: streaming alone does not reach it.
    const lane_rates rates = {12e9, 240e9, 8e9, 0, 8000, 5000};
    std::vector<plan_step> steps;
    for (uint32_t i = 0; i < 64; i++) {
        steps.push_back({{i, 2048, KVP_FULL}, 8 << 20, lane::stream, false});
    }
    const double total = simulate(steps, rates, 2, 4, 32, 128).total;
    EXPECT_LT(64.0 * (8 << 20) * 1e9 / total, 0.85 * 20e9);
}
