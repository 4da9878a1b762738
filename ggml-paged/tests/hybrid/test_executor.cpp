// The executor on a device that does things late and a source with few frames.
#include <gtest/gtest.h>

#include "rig.h"

using namespace kvp;

namespace {

constexpr double bound = 2e-5;  // f32 against f64 on these sizes

run_options options(uint64_t seed) {
    run_options o;
    o.device.seed    = seed;
    o.device.when    = (fake_device::pace) (seed / 3 % 3);
    o.source.seed    = seed;
    o.source.frames  = seed % 5 == 0 ? 1 : 1 + (uint32_t) (seed / 5 % 6);
    o.source.slow    = seed % 2;
    o.source.keep    = seed % 7 == 0;
    o.slots          = 1 + (uint32_t) (seed % 4);
    return o;
}

void expect_good(const run_result & r, const attention_case & c, uint64_t seed) {
    EXPECT_EQ(r.error, 0) << "seed " << seed << ": " << r.sentence;
    EXPECT_EQ(r.violations, std::vector<std::string>()) << "seed " << seed;
    EXPECT_EQ(r.pins_left, 0u) << "seed " << seed;
    EXPECT_LE(c.error(r.out), bound) << "seed " << seed;
}

}  // namespace

TEST(Executor, ManySchedules) {
    auto executor = hybrid_executor::make(3);
    ASSERT_TRUE(executor);
    for (uint64_t seed = 0; seed < 600; seed++) {
        case_shape shape;
        shape.pages      = 1 + (uint32_t) (seed % 13);
        shape.last_cells = 1 + (uint32_t) (seed % 4);
        shape.sinks      = seed % 3 == 0;
        const attention_case c(shape, seed);
        const hybrid_plan    plan = random_plan(c, seed);
        const run_result     r    = run(*executor, c, plan, options(seed));
        expect_good(r, c, seed);
        std::multiset<uint32_t> all = r.on_device, wanted;
        all.insert(r.on_cpu.begin(), r.on_cpu.end());
        for (const plan_step & s : plan.steps) {
            wanted.insert(s.ref.page);
        }
        EXPECT_EQ(all, wanted) << "every page once, seed " << seed;
        EXPECT_EQ(r.host_merges, r.on_cpu.empty() ? 0u : 1u);
    }
}

TEST(Executor, OneFrameMakesProgress) {
    // Every thread that pins needs the one frame, and no thread keeps it while asking.
    auto executor = hybrid_executor::make(4);
    for (uint64_t seed = 0; seed < 60; seed++) {
        case_shape shape;
        shape.pages = 24;
        const attention_case c(shape, seed);
        run_options o   = options(seed);
        o.source.frames = 1;
        o.slots         = 4;
        expect_good(run(*executor, c, random_plan(c, seed, true, seed % 2, false), o), c, seed);
    }
}

TEST(Executor, PinsNoMoreThanItWorksOn) {
    // A page per staging slot and one per worker, however many frames there are.
    auto executor = hybrid_executor::make(2);
    case_shape shape;
    shape.pages = 24;
    uint32_t most = 0;
    for (uint64_t seed = 0; seed < 30; seed++) {
        const attention_case c(shape, seed);
        run_options o   = options(seed);
        o.source.frames = 24;
        o.slots         = 3;
        const run_result r = run(*executor, c, random_plan(c, seed, true, true, false), o);
        expect_good(r, c, seed);
        EXPECT_LE(r.most_pinned, 3u + 2u);
        most = std::max(most, r.most_pinned);
    }
    EXPECT_GT(most, 2u) << "copies do not overlap";
}

TEST(Executor, SamePlanSameBits) {
    auto one_worker = hybrid_executor::make(1), five_workers = hybrid_executor::make(5);
    case_shape shape;
    shape.pages = 20;
    const attention_case c(shape, 7);
    const hybrid_plan    plan  = random_plan(c, 7);
    const run_result     first = run(*one_worker, c, plan, options(0));
    for (uint64_t seed = 1; seed < 60; seed++) {
        // Threads, slots, frames and pace are no part of the plan.
        const run_result r = run(seed % 2 ? *five_workers : *one_worker, c, plan, options(seed));
        expect_good(r, c, seed);
        EXPECT_EQ(r.out, first.out) << "seed " << seed;
    }
}

// Hot pages and streamed ones are attended in the order of the plan: with one order, it
// makes no difference to the result which page is which.
TEST(Executor, SameOrderSameBitsWhateverIsHot) {
    auto executor = hybrid_executor::make(0);
    case_shape shape;
    shape.pages = 17;
    const attention_case c(shape, 3);
    std::vector<float> first;
    for (uint64_t seed = 0; seed < 60; seed++) {
        std::mt19937_64 rng(seed);
        hybrid_plan     plan{};
        for (uint32_t p = 0; p < c.shape.pages; p++) {
            const bool hot = seed % 6 == 0 ? seed % 4 == 0 : rng() % 2;
            plan.steps.push_back({c.ref(p), c.plan_page(p, {}).bytes, hot ? lane::device_hot : lane::stream, !hot && rng() % 3 == 0});
        }
        const run_result r = run(*executor, c, plan, options(seed));
        expect_good(r, c, seed);
        EXPECT_EQ(r.on_device.size(), c.shape.pages) << "seed " << seed;
        first = first.empty() ? r.out : first;
        EXPECT_EQ(r.out, first) << "seed " << seed;
    }
}

TEST(Executor, SingleLanes) {
    auto executor = hybrid_executor::make(2);
    auto alone    = hybrid_executor::make(0);
    case_shape shape;
    shape.pages = 9;
    for (uint64_t seed = 0; seed < 20; seed++) {
        const attention_case c(shape, seed);
        run_options o = options(seed);
        expect_good(run(*alone, c, random_plan(c, seed, true, false), o), c, seed);
        o.slots = 0;
        expect_good(run(*executor, c, random_plan(c, seed, false, true), o), c, seed);
        hybrid_plan hot{};
        for (uint32_t p = 0; p < shape.pages; p++) {
            hot.steps.push_back({c.ref(p), 1, lane::device_hot, false});
        }
        const run_result r = run(*alone, c, hot, o);
        expect_good(r, c, seed);
        EXPECT_EQ(r.pins, 0u);
    }
}

TEST(Executor, NoPagesGiveZeros) {
    auto executor = hybrid_executor::make(1);
    case_shape shape;
    shape.sinks = true;
    const attention_case c(shape, 1);
    const run_result r = run(*executor, c, hybrid_plan{}, options(1));
    EXPECT_EQ(r.error, 0);
    EXPECT_EQ(r.out, std::vector<float>(c.answer.size(), 0.0f));
}

TEST(Executor, OddShapes) {
    auto executor = hybrid_executor::make(3);
    uint64_t seed = 0;
    for (uint32_t queries : {1u, 5u}) {
        for (uint32_t heads : {1u, 3u}) {
            for (uint32_t dv : {1u, 17u}) {
                case_shape shape;
                shape.pages = 6, shape.page_cells = 16, shape.last_cells = 1 + seed % 16;
                shape.queries = queries, shape.heads = heads, shape.dv = dv, shape.dk = 9;
                const attention_case c(shape, seed);
                expect_good(run(*executor, c, random_plan(c, seed), options(seed)), c, seed);
                seed++;
            }
        }
    }
}

TEST(Executor, ReadsAheadWhatIsSpilled) {
    auto executor = hybrid_executor::make(2);
    case_shape shape;
    shape.pages = 16;
    for (uint64_t seed = 0; seed < 20; seed++) {
        const attention_case c(shape, seed);
        run_options o   = options(seed);
        o.source.frames = 8;
        const hybrid_plan plan = random_plan(c, seed);
        const run_result  r    = run(*executor, c, plan, o);
        expect_good(r, c, seed);
        std::set<uint32_t> spilled;
        for (const plan_step & s : plan.steps) {
            if (s.spilled) {
                spilled.insert(s.ref.page);
            }
        }
        for (uint32_t p : r.prefetched) {
            EXPECT_EQ(spilled.count(p), 1u) << "page " << p << " is in a frame already";
        }
        EXPECT_EQ(r.prefetched.empty(), spilled.empty());
    }
}

TEST(Executor, MeasuresLanes) {
    auto executor = hybrid_executor::make(2);
    case_shape shape;
    shape.pages = 12;
    const attention_case c(shape, 3);
    const hybrid_plan    plan = random_plan(c, 3, true, true, false);
    const run_result     r    = run(*executor, c, plan, options(3));
    uint64_t stream = 0, cpu = 0, streamed = 0;
    for (const plan_step & s : plan.steps) {
        (s.where == lane::stream ? stream : cpu) += s.bytes;
        streamed += s.where == lane::stream;
    }
    EXPECT_EQ(r.measured.link.bytes, stream);
    EXPECT_EQ(r.measured.link.ns, 1000 * streamed);  // the fake says 1000 for each
    EXPECT_GT(r.measured.device.bytes, 0u);
    EXPECT_EQ(r.measured.cpu.bytes, cpu);
}

TEST(Executor, RefusesPlansItCannotRun) {
    auto alone = hybrid_executor::make(0);
    case_shape shape;
    const attention_case c(shape, 1);
    run_options o;
    run_result  r = run(*alone, c, random_plan(c, 1, false, true, false), o);
    EXPECT_EQ(r.error, -EINVAL);
    EXPECT_NE(r.sentence.find("no workers"), std::string::npos) << r.sentence;
    o.slots = 0;
    r = run(*alone, c, random_plan(c, 1, true, false, false), o);
    EXPECT_EQ(r.error, -EINVAL);
    EXPECT_NE(r.sentence.find("no staging slots"), std::string::npos) << r.sentence;
    o.slots = 2;
    hybrid_plan plan = random_plan(c, 1, true, false, false);
    for (uint32_t cells : {shape.page_cells + 1, UINT32_MAX}) {
        plan.steps[2].ref.cells = cells;
        r = run(*alone, c, plan, o);
        EXPECT_EQ(r.error, -EINVAL);
        EXPECT_EQ(r.device_calls, 0);
        EXPECT_EQ(r.pins, 0u);
    }
}

TEST(Executor, HostMemoryIsGivenBack) {
    struct counted {
        int    live = 0, made = 0;
        bool   refuse = false;
    } memory;
    const host_memory functions = {
        &memory,
        [](void * u, size_t bytes) -> void * {
            counted & m = *static_cast<counted *>(u);
            if (m.refuse) {
                return nullptr;
            }
            m.live++, m.made++;
            return malloc(bytes);
        },
        [](void * u, void * p) {
            static_cast<counted *>(u)->live--;
            free(p);
        },
    };
    case_shape shape;
    const attention_case c(shape, 2);
    const hybrid_plan    plan = random_plan(c, 2, false, true, false);
    {
        auto executor = hybrid_executor::make(2, functions);
        expect_good(run(*executor, c, plan, options(2)), c, 2);
        expect_good(run(*executor, c, plan, options(3)), c, 3);
        EXPECT_EQ(memory.made, 1) << "kept from run to run";
        case_shape more = shape;
        more.queries    = 7;
        const attention_case large(more, 2);
        expect_good(run(*executor, large, plan, options(4)), large, 4);
        EXPECT_EQ(memory.live, 1);
        more.queries = 9, memory.refuse = true;
        const attention_case larger(more, 2);
        EXPECT_EQ(run(*executor, larger, plan, options(5)).error, -ENOMEM);
        memory.refuse = false;
        expect_good(run(*executor, c, plan, options(6)), c, 6);
    }
    EXPECT_EQ(memory.live, 0);
}
