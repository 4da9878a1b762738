// Tests of the tester: the emulator must notice the faults that it is meant to find.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention_case.h"
#include "emulator/block.h"

namespace {

using emulator::order;
using emulator::run;

constexpr emulator::grid one_block = {1, 1, 1, 64};

TEST(emulator, a_barrier_in_a_branch_is_reported) {
    const std::string why = run(one_block, {}, [] {
        if (emulator::thread_index() < 40) {
            emulator::barrier("branch.cuh", 7);
        }
    });
    EXPECT_NE(why.find("branch.cuh:7"), std::string::npos) << why;
}

TEST(emulator, two_different_barriers_are_reported) {
    const std::string why = run(one_block, {}, [] {
        emulator::barrier("two.cuh", emulator::thread_index() == 5 ? 1 : 2);
    });
    EXPECT_NE(why.find("two.cuh"), std::string::npos) << why;
}

TEST(emulator, a_barrier_that_asks_answers_all_threads) {
    for (const uint32_t says : {0u, 63u, 64u}) {  // 64: no thread
        std::vector<int> got(64, -1);
        const std::string why = run(one_block, {}, [&] {
            const uint32_t t = emulator::thread_index();
            got[t] = emulator::barrier_or(t == says, "ask.cuh", 1);
            // A vote is not kept for the next barrier.
            got[t] += 2 * emulator::barrier_or(false, "ask.cuh", 2);
        });
        EXPECT_EQ(why, "");
        EXPECT_EQ(got, std::vector<int>(64, says < 64)) << says;
    }
}

TEST(emulator, misuse_of_a_barrier_that_asks_is_reported) {
    const std::string branch = run(one_block, {}, [] {
        if (emulator::thread_index() < 40) {
            emulator::barrier_or(true, "ask.cuh", 7);
        }
    });
    EXPECT_NE(branch.find("ask.cuh:7"), std::string::npos) << branch;
    // Two of different kinds, even if a macro puts both on one line.
    const std::string kinds = run(one_block, {}, [] {
        if (emulator::thread_index() == 5) {
            emulator::barrier("ask.cuh", 8);
        } else {
            emulator::barrier_or(true, "ask.cuh", 8);
        }
    });
    EXPECT_NE(kinds.find("ask.cuh:8"), std::string::npos) << kinds;
    // Left out, as by a thread that took an answer of its own for that of all.
    std::set<std::string> sites;
    emulator::order without;
    without.drop_barrier = "ask.cuh:9";
    without.sites = &sites;
    EXPECT_NE(run(one_block, without, [] {
        if (emulator::barrier_or(emulator::thread_index() == 3, "ask.cuh", 9)) {
            emulator::barrier("ask.cuh", 10);
        }
    }), "");
    EXPECT_EQ(sites.count("ask.cuh:9"), 1u);
}

TEST(emulator, a_barrier_of_a_warp_without_all_lanes_is_reported) {
    EXPECT_EQ(run(one_block, {}, [] {
        if (emulator::thread_index() < 32) {  // a warp on its own
            emulator::warp_barrier();
        }
    }), "");
    const std::string why = run(one_block, {}, [] {
        if (emulator::thread_index() != 33) {
            emulator::warp_barrier();
        }
    });
    EXPECT_NE(why.find("warp"), std::string::npos) << why;
    EXPECT_NE(run(one_block, {}, [] {
        if (emulator::thread_index() % 2) {
            emulator::warp_barrier();
        } else {
            emulator::shuffle_xor(1.0f, 2);
        }
    }), "");
}

TEST(emulator, a_shuffle_without_all_lanes_is_reported) {
    const std::string why = run(one_block, {}, [] {
        if (emulator::thread_index() != 33) {
            emulator::shuffle_xor(1.0f, 1);
        }
    });
    EXPECT_NE(why.find("shuffle"), std::string::npos) << why;
}

TEST(emulator, an_mma_without_all_lanes_is_reported) {
    const std::string returned = run(one_block, {}, [] {
        emulator::mma_operands x = {};
        if (emulator::thread_index() != 33) {
            emulator::mma(&x);
        }
    });
    EXPECT_NE(returned.find("mma"), std::string::npos) << returned;
    // A lane that waits elsewhere, for its warp or for the block, is missing, too.
    EXPECT_NE(run(one_block, {}, [] {
        emulator::mma_operands x = {};
        if (emulator::thread_index() == 33) {
            emulator::warp_barrier();
        } else {
            emulator::mma(&x);
        }
    }), "");
    const std::string at_barrier = run(one_block, {}, [] {
        emulator::mma_operands x = {};
        if (emulator::thread_index() == 33) {
            emulator::barrier("mma.cuh", 1);
        } else {
            emulator::mma(&x);
        }
    });
    EXPECT_NE(at_barrier.find("mma"), std::string::npos) << at_barrier;
    EXPECT_EQ(run(one_block, {}, [] {
        emulator::mma_operands x = {};
        if (emulator::thread_index() >= 32) {  // a warp on its own
            emulator::mma(&x);
        }
    }), "");
}

TEST(emulator, shuffles_exchange) {
    std::vector<float> got(64);
    const std::string why = run(one_block, {}, [&] {
        const uint32_t t = emulator::thread_index();
        got[t] = emulator::shuffle_xor(float(t), 8);
    });
    EXPECT_EQ(why, "");
    for (uint32_t t = 0; t < 64; ++t) {
        EXPECT_EQ(got[t], float(t ^ 8));
    }
}

TEST(emulator, shared_memory_is_limited_poisoned_and_fenced) {
    EXPECT_NE(run(one_block, {}, [] { emulator::shared_memory(emulator::shared_memory_max + 1); }), "");
    EXPECT_NE(run(one_block, {}, [] { static_cast<char *>(emulator::shared_memory(100))[100] = 1; }), "");
    EXPECT_EQ(run(one_block, {}, [] {
        const float x = *static_cast<float *>(emulator::shared_memory(4));
        EXPECT_NE(x, x);
    }), "");
}

// Every barrier of the attention kernels that the cases meet, left out, must be noticed:
// by the emulator, or by the result. So none of them can be lost unnoticed.
struct scenario {
    std::string    name;
    case_shape     shape;
    kernel_options options;
};

std::vector<scenario> scenarios() {
    std::vector<scenario> all;
    for (uint32_t n_q : {1u, 3u, 20u}) {
        // A window of one cell: most tiles are skipped, and one thread alone says that one
        // is not.
        for (int32_t window : {0, 90}) {
            for (bool resume : {false, true}) {
                scenario c;
                c.name = std::to_string(n_q) + " queries, window " + std::to_string(window) + (resume ? ", resumed" : "");
                c.shape.n_q = n_q;
                c.shape.dk = c.shape.dv = 128;
                c.shape.kv_heads = 1;
                c.shape.cells = 400;
                c.shape.window = window;
                c.shape.poison = true;
                c.options.span = resume || window == 0 ? 200 : 64;
                c.options.resume = resume;
                c.options.one_by_one = true;
                all.push_back(c);
                if (n_q == 20) {
                    // Two chunks of K and of V in a tile, on tensor cores.
                    c.name += ", tensor cores";
                    c.shape.dk = c.shape.dv = 256;
                    c.options.mma = true;
                    all.push_back(c);
                }
            }
        }
    }
    return all;
}

double bound(const scenario & s) { return s.options.mma ? 1e-3 : 1e-5; }

// Whether a scenario goes wrong with a barrier left out. A thread may then take poison for
// an address, so it runs in a process of its own, whose death counts.
bool goes_wrong(const scenario & s, const std::string & without, uint64_t seed) {
    const pid_t child = fork();
    if (child == 0) {
        const int quiet = open("/dev/null", O_WRONLY);
        dup2(quiet, STDERR_FILENO);
        const attention_case c(s.shape);
        kernel_options o = s.options;
        o.order.seed = seed;
        o.order.drop_barrier = without;
        std::string failure;
        const bool wrong = worst(c, run_kernels(c, o, &failure), c.exact()) > bound(s) || !failure.empty();
        _exit(wrong ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status != 0;
}

TEST(emulator, no_barrier_of_the_kernels_can_be_left_out) {
    std::set<std::string> sites, missed;
    const std::vector<scenario> cases = scenarios();
    for (const scenario & m : cases) {
        const attention_case c(m.shape);
        kernel_options o = m.options;
        o.order.sites = &sites;
        std::string failure;
        ASSERT_LE(worst(c, run_kernels(c, o, &failure), c.exact()), bound(m)) << m.name;
        ASSERT_EQ(failure, "") << m.name;
    }
    ASSERT_GE(sites.size(), 21u);
    ASSERT_FALSE(goes_wrong(cases[0], "", 0));
    for (const std::string & site : sites) {
        bool noticed = false;
        for (uint32_t i = 0; i < 4 * cases.size() && !noticed; ++i) {
            noticed = goes_wrong(cases[i % cases.size()], site, i);
        }
        if (!noticed) {
            missed.insert(site);
        }
    }
    for (const std::string & site : missed) {
        ADD_FAILURE() << "the barrier " << site << " can be left out";
    }
}

} // namespace
