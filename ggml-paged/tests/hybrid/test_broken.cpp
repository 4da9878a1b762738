// Devices that ignore the executor's requests must be noticed: the fakes can fail.
#include <gtest/gtest.h>

#include "rig.h"

using namespace kvp;

namespace {

// How many schedules of a thread's timing and of a seed are tried.
constexpr int schedules = 900;

// How many of the schedules show a violation or a wrong result.
int noticed(const fake_device::options & broken) {
    case_shape shape;
    shape.pages = 12;
    auto executor = hybrid_executor::make(2);
    int  n = 0;
    for (uint64_t seed = 0; seed < schedules; seed++) {
        const attention_case c(shape, seed);
        run_options o;
        o.device        = broken;
        o.device.seed   = seed;
        o.device.when   = (fake_device::pace) (seed / 3 % 3);
        o.source.seed   = seed;
        o.source.frames = 6;
        o.slots         = 1 + (uint32_t) (seed % 3);
        const run_result r = run(*executor, c, random_plan(c, seed, true, true, seed % 2), o);
        n += !r.violations.empty() || !(c.error(r.out) <= 2e-5);
    }
    return n;
}

}  // namespace

TEST(Broken, NothingIsNoticedOnAGoodDevice) {
    EXPECT_EQ(noticed({}), 0);
}

TEST(Broken, LaunchesThatDoNotWaitForCopies) {
    fake_device::options broken;
    broken.drop_compute_waits = true;
    EXPECT_GT(noticed(broken), schedules / 4);
}

TEST(Broken, CopiesThatDoNotWaitForKernels) {
    fake_device::options broken;
    broken.drop_copy_waits = true;
    EXPECT_GT(noticed(broken), schedules / 50); // one in nine, and fewer on a busy machine
}

TEST(Broken, UnpinBeforeTheCopyIsDone) {
    fake_device::options broken;
    broken.drop_syncs = true;
    EXPECT_GT(noticed(broken), schedules / 4);
}
