// The kernels under the thread sanitizer: no access of shared memory races with another.
// The test finds the races that compute-sanitizer's racecheck would report on a card,
// without a card.
#include <gtest/gtest.h>

#include <atomic>

#include "attention_case.h"

// Called by the sanitizer with each race that it finds.
static std::atomic<int> races{0};
extern "C" void __tsan_on_report(void *) { races++; }
// Races that tests plant are reported too, so the tests alone decide how this ends; and an
// address where one was reported, such as that of shared memory, is still watched.
extern "C" const char * __tsan_default_options() { return "exitcode=0:suppress_equal_addresses=0:suppress_equal_stacks=0"; }

namespace {

constexpr emulator::grid one_block = {1, 1, 1, 64};

int races_of(const std::function<void()> & kernel) {
    const int before = races;
    emulator::run(one_block, {}, kernel);
    return races - before;
}

TEST(races, the_same_value_from_two_threads_is_a_race) {
    EXPECT_GT(races_of([] {
        if (emulator::thread_index() < 2) {
            *static_cast<uint32_t *>(emulator::shared_memory(4)) = 1;
        }
    }), 0);
}

TEST(races, a_barrier_orders) {
    EXPECT_EQ(races_of([] {
        uint32_t * x = static_cast<uint32_t *>(emulator::shared_memory(4));
        for (uint32_t t = 0; t < 4; ++t) {
            if (emulator::thread_index() == t) {
                *x = t;
            }
            emulator::barrier_or(t == 1, "", 0);
        }
    }), 0);
}

// Lane 1 reads a value that lane 0 wrote, with a shuffle or a warp's barrier between.
void hand_over(void (*between)()) {
    volatile float * x = static_cast<float *>(emulator::shared_memory(4));
    if (emulator::thread_index() == 0) {
        *x = 1;
    }
    between();
    if (emulator::thread_index() == 1) {
        EXPECT_EQ(*x, 1);
    }
}

TEST(races, a_shuffle_orders_no_memory_and_a_barrier_of_a_warp_does) {
    EXPECT_GT(races_of([] { hand_over([] { emulator::shuffle_xor(0, 1); }); }), 0);
    EXPECT_EQ(races_of([] { hand_over(emulator::warp_barrier); }), 0);
}

void expect_none(const case_shape & s, const kernel_options & o) {
    const attention_case c(s);
    std::string failure;
    const int before = races;
    const std::vector<float> got = run_kernels(c, o, &failure);
    EXPECT_EQ(failure, "");
    EXPECT_EQ(races, before) << s.n_q << " queries, rows " << o.decode_rows << ", tensor cores " << o.mma << ", window " << s.window;
    if (!s.foreign_infinity) {
        EXPECT_LE(worst(c, got, c.exact()), o.mma ? 1e-3 : 1e-5);
    }
}

// Tiles that no row sees between tiles that are seen, and infinities that some rows see.
TEST(races, an_mma_orders_no_memory) {
    EXPECT_GT(races_of([] {
        hand_over([] {
            emulator::mma_operands x = {};
            emulator::mma(&x);
        });
    }), 0);
}

TEST(races, the_attention_kernels_have_none) {
    struct { int rows; bool mma; } const kernels[] = {{4, false}, {0, false}, {0, true}};  // decode, prefill
    for (const auto & kernel : kernels) {
        case_shape s;
        s.n_q = 4;
        s.kv_heads = 1;
        s.cells = 300;
        s.poison = true;
        kernel_options o;
        o.decode_rows = kernel.rows;
        o.mma = kernel.mma;
        s.window = 0;
        expect_none(s, o);
        o.resume = true;
        o.span = 150;
        s.window = 90;
        s.foreign_infinity = true;
        expect_none(s, o);
    }
}

} // namespace
