// A failure at every place: the run stops, gives everything back, says why, and the next
// run is good.
#include <gtest/gtest.h>

#include "rig.h"

using namespace kvp;

namespace {

attention_case make_case() {
    case_shape shape;
    shape.pages = 11;
    shape.last_cells = 3;
    return attention_case(shape, 5);
}

run_options options(uint64_t seed) {
    run_options o;
    o.device.seed   = seed;
    o.device.when   = (fake_device::pace) (seed % 3);
    o.source.seed   = seed;
    o.source.frames = 1 + (uint32_t) (seed % 5);
    o.source.slow   = seed % 2;
    o.slots         = 1 + (uint32_t) (seed % 3);
    return o;
}

void expect_stopped(const run_result & r, int error, const char * says, int at) {
    EXPECT_EQ(r.error, error) << "failure at " << at << ": " << r.sentence;
    EXPECT_NE(r.sentence.find(says), std::string::npos) << r.sentence;
    EXPECT_EQ(r.pins_left, 0u) << "failure at " << at;
    EXPECT_EQ(r.violations, std::vector<std::string>()) << "failure at " << at;
}

}  // namespace

TEST(Faults, EveryDeviceCall) {
    const attention_case c        = make_case();
    const hybrid_plan    plan     = random_plan(c, 9);
    auto                 executor = hybrid_executor::make(2);
    const int            calls    = run(*executor, c, plan, options(0)).device_calls;
    ASSERT_GT(calls, 30);
    for (int at = 0; at < calls; at++) {
        for (uint64_t seed = 0; seed < 6; seed++) {
            run_options o    = options(seed);
            o.slots          = options(0).slots;
            o.device.fail_at = at;
            expect_stopped(run(*executor, c, plan, o), -EREMOTEIO, "told to fail", at);
        }
        const run_result good = run(*executor, c, plan, options((uint64_t) at));
        ASSERT_EQ(good.error, 0) << good.sentence;
        ASSERT_LE(c.error(good.out), 2e-5);
    }
}

TEST(Faults, EveryPin) {
    const attention_case c        = make_case();
    const hybrid_plan    plan     = random_plan(c, 9);
    auto                 executor = hybrid_executor::make(3);
    const int            pins     = (int) run(*executor, c, plan, options(0)).pins;
    ASSERT_GT(pins, 5);
    for (int at = 0; at < pins; at++) {
        for (uint64_t seed = 0; seed < 12; seed++) {
            run_options o    = options(seed);
            o.source.fail_at = at;
            expect_stopped(run(*executor, c, plan, o), -EIO, "reading page", at);
        }
    }
    EXPECT_EQ(run(*executor, c, plan, options(1)).error, 0);
}

TEST(Faults, EveryCpuPage) {
    const attention_case c        = make_case();
    const hybrid_plan    plan     = random_plan(c, 9);
    auto                 executor = hybrid_executor::make(2);
    const int            pages    = run(*executor, c, plan, options(0)).cpu_calls;
    ASSERT_GT(pages, 2);
    for (int at = 0; at < pages; at++) {
        for (uint64_t seed = 0; seed < 12; seed++) {
            run_options o = options(seed);
            o.cpu_fail    = at;
            expect_stopped(run(*executor, c, plan, o), -ENXIO, "on the CPU", at);
        }
    }
    EXPECT_EQ(run(*executor, c, plan, options(1)).error, 0);
}

TEST(Faults, TheFirstOfManyIsKept) {
    const attention_case c        = make_case();
    auto                 executor = hybrid_executor::make(4);
    for (uint64_t seed = 0; seed < 60; seed++) {
        run_options o    = options(seed);
        o.source.fail_at = (int) (seed % 9);
        o.cpu_fail       = (int) (seed % 4);
        o.device.fail_at = (int) (seed % 40);
        const run_result r = run(*executor, c, random_plan(c, seed, true, true, seed % 2), o);
        EXPECT_LT(r.error, 0);
        EXPECT_FALSE(r.sentence.empty());
        EXPECT_EQ(r.pins_left, 0u) << "seed " << seed;
        EXPECT_EQ(r.violations, std::vector<std::string>()) << "seed " << seed;
    }
}
