// The planner: every page once, close to the best split, the same plan for the same input.
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <random>

#include "hybrid/hybrid.h"
#include "lane_simulation.h"

using namespace kvp;

namespace {

const lane_rates usual = {12e9, 300e9, 8e9, 2e9, 8000, 5000};

std::vector<plan_page> some_pages(size_t n, residency where, uint64_t bytes = 8 << 20) {
    std::vector<plan_page> pages;
    for (size_t i = 0; i < n; i++) {
        pages.push_back({{(uint32_t) i, 16, KVP_MIXED}, where, bytes});
    }
    return pages;
}

plan_input input(const std::vector<plan_page> & pages, const lane_rates & rates = usual, uint32_t slots = 2, uint32_t workers = 4) {
    return plan_input{pages.data(), pages.size(), rates, slots, workers, 32, 128};
}

size_t count(const hybrid_plan & p, lane where) {
    size_t n = 0;
    for (const plan_step & s : p.steps) {
        n += s.where == where;
    }
    return n;
}

std::vector<plan_page> random_pages(std::mt19937_64 & rng, size_t n, bool one_size) {
    std::vector<plan_page> pages;
    uint32_t number = 0;
    for (size_t i = 0; i < n; i++) {
        number += 1 + (uint32_t) (rng() % 3);
        const uint64_t bytes = one_size ? 1 << 20 : 1 + rng() % (1 << 21);
        pages.push_back({{number, 16, (kvp_class) (rng() % 8 == 0 ? 0 : 1 + rng() % 2)}, (residency) (rng() % 3), bytes});
    }
    return pages;
}

double log_uniform(std::mt19937_64 & rng, double low, double high) {
    return low * std::exp((double) (rng() % 1000000) / 1e6 * std::log(high / low));
}

lane_rates random_rates(std::mt19937_64 & rng) {
    return {log_uniform(rng, 1e9, 50e9), log_uniform(rng, 5e9, 1e12), log_uniform(rng, 1e8, 50e9),
            rng() % 4 ? log_uniform(rng, 2e8, 10e9) : 0, log_uniform(rng, 100, 20000), log_uniform(rng, 100, 20000)};
}

}  // namespace

TEST(Plan, NoPages) {
    hybrid_plan p;
    EXPECT_EQ(hybrid_plan_make(input({}), &p), 0);
    EXPECT_TRUE(p.steps.empty());
    EXPECT_EQ(p.times.total, 0);
}

TEST(Plan, EveryPageOnceInOrder) {
    std::mt19937_64 rng(1);
    for (int round = 0; round < 2000; round++) {
        const auto pages = random_pages(rng, rng() % 60, rng() % 2);
        hybrid_plan p;
        ASSERT_EQ(hybrid_plan_make(input(pages, random_rates(rng), 1 + rng() % 4, 1 + rng() % 9), &p), 0);
        std::vector<plan_page> wanted;
        for (residency r : {residency::device_hot, residency::host_frame, residency::spilled}) {
            for (const plan_page & page : pages) {
                if (page.where == r && page.ref.cls != KVP_EMPTY) {
                    wanted.push_back(page);
                }
            }
        }
        ASSERT_EQ(p.steps.size(), wanted.size());
        for (size_t i = 0; i < wanted.size(); i++) {
            EXPECT_EQ(p.steps[i].ref.page, wanted[i].ref.page);
            EXPECT_EQ(p.steps[i].ref.cls, wanted[i].ref.cls);
            EXPECT_EQ(p.steps[i].bytes, wanted[i].bytes);
            EXPECT_EQ(p.steps[i].spilled, wanted[i].where == residency::spilled);
            EXPECT_EQ(p.steps[i].where == lane::device_hot, wanted[i].where == residency::device_hot);
        }
    }
}

TEST(Plan, SameInputSamePlan) {
    std::mt19937_64 rng(2);
    hybrid_plan reused;
    for (int round = 0; round < 300; round++) {
        const auto pages = random_pages(rng, rng() % 200, rng() % 2);
        const lane_rates rates = random_rates(rng);
        hybrid_plan fresh;
        ASSERT_EQ(hybrid_plan_make(input(pages, rates), &fresh), 0);
        ASSERT_EQ(hybrid_plan_make(input(pages, rates), &reused), 0);
        ASSERT_EQ(fresh.steps.size(), reused.steps.size());
        for (size_t i = 0; i < fresh.steps.size(); i++) {
            EXPECT_EQ(fresh.steps[i].where, reused.steps[i].where);
        }
        EXPECT_EQ(fresh.times.total, reused.times.total);
    }
}

// All assignments of few pages, by simulation.
TEST(Plan, WithinAFactorOfTheBestSplit) {
    std::mt19937_64 rng(3);
    double worst = 1, sum = 0;
    int    rounds = 0;
    for (; rounds < 1500; rounds++) {
        const auto       pages = random_pages(rng, 1 + rng() % 12, rng() % 2);
        const lane_rates rates = random_rates(rng);
        const uint32_t   slots = 1 + rng() % 3, workers = 1 + rng() % 4;
        hybrid_plan p;
        ASSERT_EQ(hybrid_plan_make(input(pages, rates, slots, workers), &p), 0);
        const double planned = simulate(p.steps, rates, slots, workers, 32, 128).total;
        ASSERT_NEAR(p.times.total, planned, planned * 1e-9) << "the planner's model";
        const size_t hot = count(p, lane::device_hot), cold = p.steps.size() - hot;
        double best = INFINITY;
        for (uint32_t bits = 0; bits < 1u << cold; bits++) {
            for (size_t i = 0; i < cold; i++) {
                p.steps[hot + i].where = bits >> i & 1 ? lane::cpu : lane::stream;
            }
            best = std::min(best, simulate(p.steps, rates, slots, workers, 32, 128).total);
        }
        if (best > 0) {
            worst = std::max(worst, planned / best);
            sum += planned / best;
        } else {
            sum += 1;
        }
    }
    printf("planned / best split: worst %.3f, mean %.4f\n", worst, sum / rounds);
    EXPECT_LE(worst, 1.25);
    EXPECT_LE(sum / rounds, 1.005);
}

// With many pages of one size the lanes must be done at about the same time.
TEST(Plan, ManyPagesAreNearTheFluidBound) {
    std::mt19937_64 rng(4);
    for (int round = 0; round < 200; round++) {
        const auto pages = some_pages(17 + rng() % (round % 2 ? 40 : 800), residency::host_frame, 1 << 20);
        lane_rates rates = random_rates(rng);
        rates.device = std::max(rates.device, 2 * rates.h2d);
        rates.copy_ns = rates.launch_ns = 0;
        hybrid_plan p;
        ASSERT_EQ(hybrid_plan_make(input(pages, rates, 2, 4), &p), 0);
        const double fluid = pages.size() * 1e9 * (1 << 20) / (rates.h2d + rates.cpu);
        const double page  = 1e9 * (1 << 20) / rates.h2d + 1e9 * (1 << 20) / rates.device + 4e9 * (1 << 20) / rates.cpu;
        const double total = simulate(p.steps, rates, 2, 4, 32, 128).total;
        EXPECT_LE(total, fluid + page + 1e6);
        EXPECT_NEAR(p.times.total, total, total * 1e-9);
    }
}

TEST(Plan, ALaneWithoutARateIsNotUsed) {
    const auto pages = some_pages(20, residency::host_frame);
    hybrid_plan p;
    for (double none : {0.0, -1.0, (double) NAN, (double) INFINITY}) {
        lane_rates r = usual;
        r.cpu = none;
        ASSERT_EQ(hybrid_plan_make(input(pages, r), &p), 0);
        EXPECT_EQ(count(p, lane::stream), 20u);
        r = usual, r.h2d = none;
        ASSERT_EQ(hybrid_plan_make(input(pages, r), &p), 0);
        EXPECT_EQ(count(p, lane::cpu), 20u);
        r = usual, r.device = none;
        ASSERT_EQ(hybrid_plan_make(input(pages, r), &p), 0);
        EXPECT_EQ(count(p, lane::cpu), 20u);
        r = usual, r.disk = none, r.copy_ns = none, r.launch_ns = none;
        ASSERT_EQ(hybrid_plan_make(input(pages, r), &p), 0);
        EXPECT_TRUE(std::isfinite(p.times.total));
    }
    ASSERT_EQ(hybrid_plan_make(input(pages, usual, 0), &p), 0);
    EXPECT_EQ(count(p, lane::cpu), 20u);
    ASSERT_EQ(hybrid_plan_make(input(pages, usual, 2, 0), &p), 0);
    EXPECT_EQ(count(p, lane::stream), 20u);
    EXPECT_EQ(hybrid_plan_make(input(pages, usual, 0, 0), &p), -EINVAL);
    EXPECT_NE(p.error.find("20 pages"), std::string::npos) << p.error;
    // Hot pages need no lane.
    const auto hot = some_pages(3, residency::device_hot);
    EXPECT_EQ(hybrid_plan_make(input(hot, lane_rates{}, 0, 0), &p), 0);
    EXPECT_EQ(count(p, lane::device_hot), 3u);
}

TEST(Plan, OnePageGoesToTheFasterLane) {
    hybrid_plan p;
    const auto page = some_pages(1, residency::host_frame);
    ASSERT_EQ(hybrid_plan_make(input(page, {1e9, 1e12, 50e9, 0, 0, 0}, 1, 1), &p), 0);
    EXPECT_EQ(count(p, lane::cpu), 1u);
    ASSERT_EQ(hybrid_plan_make(input(page, {10e9, 1e12, 5e9, 0, 0, 0}, 1, 1), &p), 0);
    EXPECT_EQ(count(p, lane::stream), 1u);
    // One page is one worker's: eight of them are no faster.
    ASSERT_EQ(hybrid_plan_make(input(page, {10e9, 1e12, 40e9, 0, 0, 0}, 1, 8), &p), 0);
    EXPECT_EQ(count(p, lane::stream), 1u);
}

TEST(Plan, PrefillLeavesASlowCpuOut) {
    hybrid_plan p;
    const auto pages = some_pages(16, residency::host_frame);
    ASSERT_EQ(hybrid_plan_make(input(pages, {12e9, 60e9, 50e6, 0, 8000, 5000}), &p), 0);
    EXPECT_EQ(count(p, lane::cpu), 0u);
}

TEST(Plan, OneSlotPushesPagesToTheCpu) {
    // With one slot a copy waits for the attention of the page before, so the lane is slower.
    const auto pages = some_pages(200, residency::host_frame);
    const lane_rates r = {10e9, 10e9, 10e9, 0, 0, 0};
    hybrid_plan one, two;
    ASSERT_EQ(hybrid_plan_make(input(pages, r, 1), &one), 0);
    ASSERT_EQ(hybrid_plan_make(input(pages, r, 2), &two), 0);
    EXPECT_NEAR((double) count(one, lane::stream), 200.0 / 3, 4);
    EXPECT_NEAR((double) count(two, lane::stream), 100, 4);
}

TEST(Plan, RefusesPagesOutOfOrder) {
    auto pages = some_pages(3, residency::host_frame);
    pages[2].ref.page = pages[1].ref.page;
    hybrid_plan p;
    EXPECT_EQ(hybrid_plan_make(input(pages), &p), -EINVAL);
    EXPECT_TRUE(p.steps.empty());
    EXPECT_NE(p.error.find("ascending"), std::string::npos);
}

TEST(Plan, HugeSettingsCostNothing) {
    const auto pages = some_pages(3, residency::spilled);
    hybrid_plan p;
    EXPECT_EQ(hybrid_plan_make(input(pages, usual, UINT32_MAX, UINT32_MAX), &p), 0);
    EXPECT_EQ(p.steps.size(), 3u);
}
