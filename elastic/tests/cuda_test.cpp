// The CUDA backing over the fake driver: every failure of every function, and the shape of the
// calls.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "rig.h"

using rig::page;

namespace {

// A Life is a scripted history that touches every function. Each step's result is kept; after
// a failed step the history goes on.
struct Life {
    kvc_pool_t *   pool = nullptr;
    kvc_buffer_t * a = nullptr, * b = nullptr;
    std::vector<int> results;

    void step(int rc) { results.push_back(rc); }

    void run(uint32_t flags) {
        kvc_options_t o{};
        o.reserve_bytes = 2 * page;
        o.flags         = flags;
        o.cuda_library  = KVC_FAKE_LIBRARY;
        step(kvc_pool_create_ex(32 * page, 0, &o, &pool));
        if (pool == nullptr) {
            return;
        }
        uint64_t free_bytes, total;
        step(kvc_pool_memory(pool, &free_bytes, &total));
        step(kvc_buffer_alloc(pool, 8 * page, &a));
        step(kvc_buffer_alloc(pool, 6 * page, &b));
        if (a != nullptr) {
            step(kvc_buffer_commit(a, page, 3 * page));
            step(kvc_buffer_commit(a, 0, 8 * page));
            step(kvc_buffer_uncommit(a, 2 * page, 4 * page));
        }
        if (b != nullptr) {
            step(kvc_buffer_commit(b, 0, 4 * page));
            step(kvc_buffer_uncommit(b, 0, 4 * page));
        }
        step(kvc_pool_resize(pool, 4 * page));
        step(kvc_pool_resize(pool, 32 * page));
        if (a != nullptr) {
            step(kvc_buffer_commit(a, 0, 8 * page));
        }
    }

    // end retries until everything is given back; `tries` are more than failures on demand.
    int end(int tries) {
        const auto until = [&](const std::function<int()> & f) {
            int rc = KVC_E_SYSTEM;
            for (int i = 0; i < tries && rc != KVC_OK; i++) {
                rc = f();
            }
            return rc;
        };
        for (kvc_buffer_t ** x : {&a, &b}) {
            if (*x != nullptr && until([&] { return kvc_buffer_free(*x); }) != KVC_OK) {
                return KVC_E_SYSTEM;
            }
            *x = nullptr;
        }
        if (pool != nullptr && until([&] { return kvc_pool_destroy(pool); }) != KVC_OK) {
            return KVC_E_SYSTEM;
        }
        pool = nullptr;
        return KVC_OK;
    }
};

// check compares the accounts with the mappings of the fake: a committed granule has memory of
// its own that can be accessed, and two never share.
void check_granules(kvc_buffer_t * b, size_t granules, std::vector<uint64_t> & seen) {
    const uint8_t * base = (const uint8_t *) kvc_buffer_get_base(b);
    for (size_t g = 0; g < granules; g++) {
        if (kvc_buffer_committed(b, g * page, page) == 1) {
            const uint64_t shown = fakecuda_shown(base + g * page);
            ASSERT_NE(0u, shown) << "committed, and not accessible";
            ASSERT_EQ(seen.end(), std::find(seen.begin(), seen.end(), shown)) << "two granules share memory";
            seen.push_back(shown);
        }
    }
}

const char * const functions[] = {
    "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuMemsetD8Async", "cuMemGetInfo_v2",
    "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
    "cuMemSetAccess", "cuCtxSynchronize",
};

class EveryFailure : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Flags, EveryFailure, ::testing::Values(0u, KVC_BARE, KVC_BARE_END));

// play lives a life in which call number nth of a function (null: of all) and `more` after it
// fail, and requires that everything can be given back afterwards.
void play(uint32_t flags, const char * name, uint64_t nth, uint64_t more) {
    SCOPED_TRACE(testing::Message() << "call " << nth << " of " << (name != nullptr ? name : "all") << " and " << more << " more");
    rig::Fake fake(64);
    fakecuda_fail(name, nth, nth % 2 == 0 ? 2 : 999, more);
    Life life;
    life.run(flags);
    const bool created = life.pool != nullptr;
    const bool in_vain = more == UINT64_MAX && nth % 2 == 0;
    if (in_vain) {
        life.end(1); // as far as the driver lets it
    }
    fakecuda_fail(nullptr, 0, 0, 0);
    std::vector<uint64_t> seen;
    if (life.a != nullptr) {
        check_granules(life.a, 8, seen);
        // Usable again, except by one who has begun to free it.
        ASSERT_EQ(in_vain ? KVC_E_INVALID : KVC_OK, kvc_buffer_commit(life.a, 0, 8 * page)) << kvc_last_error();
    }
    if (life.b != nullptr) {
        check_granules(life.b, 6, seen);
    }
    ASSERT_EQ(KVC_OK, life.end(1)) << kvc_last_error();
    const fakecuda_state s = rig::Fake::state();
    if (!created && (s.contexts > 0 || s.streams > 0 || s.handles > 0)) {
        // A creation whose clean-up failed too: only the process's end frees that.
        ASSERT_GT(more, 0u);
        fakecuda_reset(nullptr);
    }
}

// Every call of the life fails: once, a few times, and for ever; and every call of each
// function alone.
TEST_P(EveryFailure, OfEveryFunctionIsRolledBack) {
    std::map<const char *, uint64_t> calls;
    {
        rig::Fake fake(64);
        Life life;
        life.run(GetParam());
        ASSERT_EQ(KVC_OK, life.end(1));
        for (int rc : life.results) {
            ASSERT_TRUE(rc == KVC_OK || rc == KVC_E_OVER);
        }
        for (const char * name : functions) {
            calls[name] = fakecuda_calls(name);
            ASSERT_GT(calls[name], 0u) << name;
        }
        calls[nullptr] = rig::Fake::state().calls;
    }
    ASSERT_GT(calls[nullptr], 100u);
    for (const auto & [name, n] : calls) {
        for (uint64_t nth = 1; nth <= n && !HasFailure(); nth++) {
            for (uint64_t more : {uint64_t(0), uint64_t(1), uint64_t(3), UINT64_MAX}) {
                play(GetParam(), name, nth, more);
            }
        }
    }
}

// A failed commit leaves exactly the granules and the bytes of before.
TEST(Cuda, ACommitIsAllOrNothing) {
    for (const char * name : {"cuMemCreate", "cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuStreamSynchronize",
                              "cuCtxPushCurrent_v2", "cuCtxSynchronize"}) {
        for (uint64_t nth = 1; nth <= 8; nth++) {
            SCOPED_TRACE(testing::Message() << name << " " << nth);
            rig::Fake fake(64);
            kvc_options_t o{};
            o.reserve_bytes = 2 * page;
            rig::Pool pool(32 * page, 0, o);
            rig::Buffer b(pool, 16 * page);
            for (size_t g : {1, 3, 5}) {
                ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, g * page, page));
                memset(b.base + g * page, int(g), page);
            }
            ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 6 * page, 2 * page));
            ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 6 * page, 2 * page));
            const kvc_stats_t before = pool.stats();
            fakecuda_fail(name, nth, 2, 0);
            const int rc = kvc_buffer_commit(b.handle, 0, 10 * page);
            const bool failed = fakecuda_failed() > 0;
            fakecuda_fail(nullptr, 0, 0, 0);
            ASSERT_EQ(failed ? KVC_E_NO_MEMORY : KVC_OK, rc);
            if (failed) {
                EXPECT_EQ(before.committed_bytes, pool.stats().committed_bytes);
                EXPECT_EQ(before.prealloc_bytes, pool.stats().prealloc_bytes);
                // The zero granule is back everywhere else.
                const uint64_t zero = fakecuda_shown(b.base + 15 * page);
                for (size_t g : {0, 2, 4, 6, 7, 8, 9}) {
                    EXPECT_EQ(zero, fakecuda_shown(b.base + g * page)) << g;
                }
            }
            for (size_t g : {1, 3, 5}) {
                EXPECT_TRUE(rig::all(b.base + g * page, page, g));
            }
        }
    }
}

TEST(Cuda, AFailedRestorationIsSaidAndHealed) {
    rig::Fake fake(64);
    rig::Pool pool(32 * page, 0, {});
    rig::Buffer b(pool, 4 * page);
    fakecuda_fail("cuMemMap", 2, 999, 100); // the second granule, and all restorations
    ASSERT_EQ(KVC_E_SYSTEM, kvc_buffer_commit(b.handle, 0, 3 * page));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "restored")) << kvc_last_error();
    fakecuda_fail(nullptr, 0, 0, 0);
    EXPECT_EQ(0u, fakecuda_shown(b.base));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 3 * page));
    EXPECT_TRUE(rig::all(b.base, 3 * page, 0));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 3 * page));
    EXPECT_EQ(fakecuda_shown(b.base + 3 * page), fakecuda_shown(b.base));
}

// The driver refuses to set access, and then to take the new memory out again; a second commit
// cannot take it out either. Nothing is lost, and a third commit heals.
TEST(Cuda, MemoryThatCannotBeTakenOutIsNotLost) {
    rig::Fake fake(64);
    rig::Pool pool(32 * page, 0, {});
    rig::Buffer b(pool, 4 * page);
    fakecuda_fail(nullptr, 9, 999, 1000); // the call after a push, two creations, a wait and two replacements
    ASSERT_EQ(KVC_E_SYSTEM, kvc_buffer_commit(b.handle, 0, 2 * page));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "allowing access")) << kvc_last_error();
    fakecuda_fail("cuMemUnmap", 1, 999, 1000);
    ASSERT_EQ(KVC_E_SYSTEM, kvc_buffer_commit(b.handle, 0, 2 * page));
    fakecuda_fail(nullptr, 0, 0, 0);
    EXPECT_EQ(0u, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 2 * page)) << kvc_last_error();
    EXPECT_TRUE(rig::all(b.base, 2 * page, 0));
    EXPECT_EQ(3 * page + pool.stats().prealloc_bytes, rig::Fake::state().used);
}

TEST(Cuda, OutOfMemoryIsAnErrorWithNumbers) {
    rig::Fake fake(6); // one is the zero granule
    rig::Pool pool(64 * page, 0, {});
    rig::Buffer b(pool, 32 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 3 * page));
    ASSERT_EQ(KVC_E_NO_MEMORY, kvc_buffer_commit(b.handle, 0, 6 * page));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "12288 bytes on CUDA device 0")) << kvc_last_error();
    EXPECT_EQ(3 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 5 * page));
    EXPECT_EQ(1u, pool.stats().failed);
    uint64_t free_bytes, total;
    ASSERT_EQ(KVC_OK, kvc_pool_memory(pool.handle, &free_bytes, &total));
    EXPECT_EQ(0u, free_bytes);
    EXPECT_EQ(6 * page, total);
}

TEST(Cuda, UncommittedGranulesShowOneMemory) {
    rig::Fake fake(64);
    rig::Pool pool(64 * page, 0, {});
    rig::Buffer a(pool, 4 * page), b(pool, 4 * page);
    EXPECT_TRUE(rig::all(a.base, 4 * page, 0)) << "begins as zeros: garbage may be NaN";
    memset(a.base, 3, page);
    EXPECT_TRUE(rig::all(b.base + 3 * page, page, 3));
    EXPECT_EQ(page, rig::Fake::state().used);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, page));
    EXPECT_TRUE(rig::all(b.base, page, 0));
    EXPECT_EQ(2 * page, rig::Fake::state().used);
}

TEST(Cuda, BareGranulesAreNotMapped) {
    rig::Fake fake(64);
    kvc_options_t o{};
    o.flags = KVC_BARE;
    rig::Pool pool(64 * page, 0, o);
    rig::Buffer b(pool, 4 * page);
    EXPECT_EQ(0u, rig::Fake::state().used);
    EXPECT_EQ(0u, rig::Fake::state().mappings);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 2 * page));
    EXPECT_EQ(0u, fakecuda_calls("cuMemUnmap")) << "a commit disturbs nothing";
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 2 * page));
    EXPECT_EQ(0u, fakecuda_shown(b.base));
}

// Behind the last committed granule nothing is mapped, so that a buffer grows without a wait and without
// an unmapped moment. Before it everything is mapped, so that padded views can be read.
TEST(Cuda, AnEndThatIsBareGrowsUndisturbed) {
    rig::Fake fake(64);
    kvc_options_t o{};
    o.flags = KVC_BARE_END;
    rig::Pool pool(64 * page, 0, o);
    rig::Buffer b(pool, 8 * page);
    EXPECT_EQ(0u, rig::Fake::state().mappings);
    const auto mapped = [&] {
        size_t n = 0;
        for (size_t g = 0; g < 8; g++) {
            n += fakecuda_shown(b.base + g * page) != 0 ? size_t(1) << g : 0;
        }
        return n;
    };
    const auto calls = [] { return fakecuda_calls("cuMemUnmap") + fakecuda_calls("cuCtxSynchronize"); };
    const uint64_t before = calls();
    EXPECT_EQ(0, kvc_buffer_disturbs(b.handle, 2 * page, 2 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 2 * page, 2 * page));
    EXPECT_EQ(0b1111u, mapped()) << "holes before what is committed show zeros";
    EXPECT_TRUE(rig::all(b.base, 4 * page, 0));
    EXPECT_EQ(0, kvc_buffer_disturbs(b.handle, 3 * page, 3 * page)) << "one granule has memory, the others are bare";
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 3 * page, 3 * page));
    EXPECT_EQ(0b111111u, mapped());
    EXPECT_EQ(before, calls()) << "growing disturbs nothing";

    EXPECT_EQ(1, kvc_buffer_disturbs(b.handle, page, 6 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, page, page));
    EXPECT_EQ(before + 2, calls()) << "a hole may be in use";

    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 2 * page, 2 * page));
    EXPECT_EQ(0b111111u, mapped());
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 4 * page, 2 * page));
    EXPECT_EQ(0b11u, mapped()) << "the hole is at the end now";
    EXPECT_EQ(0, kvc_buffer_disturbs(b.handle, 2 * page, 6 * page));
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_disturbs(b.handle, 7 * page, 2 * page));
    EXPECT_EQ(0, kvc_buffer_disturbs(b.handle, page, page)) << "it has memory";
}

// Where the driver fails once to show the zero granule in a hole, the next commit shows it there.
TEST(Cuda, AHoleThatCouldNotBeShownIsShownLater) {
    for (const char * function : {"cuMemMap", "cuMemSetAccess"}) {
        rig::Fake fake(64);
        kvc_options_t o{};
        o.flags = KVC_BARE_END;
        rig::Pool pool(64 * page, 0, o);
        rig::Buffer b(pool, 8 * page);
        ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page));
        fakecuda_fail(function, 1, 999, 0);
        ASSERT_EQ(KVC_E_SYSTEM, kvc_buffer_uncommit(b.handle, page, page)) << function;
        EXPECT_EQ(0u, fakecuda_shown(b.base + page));
        ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 4 * page, page)) << function;
        EXPECT_NE(0u, fakecuda_shown(b.base + page)) << function;
        EXPECT_TRUE(rig::all(b.base + page, page, 0)) << function;
        ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, page, page)) << function;
        EXPECT_EQ(5 * page, pool.stats().committed_bytes);
    }
}

// Resizes and polls happen while kernels run: they must leave mappings alone.
TEST(Cuda, GivingPreallocUpChangesNoMapping) {
    rig::Fake fake(64);
    kvc_options_t o{};
    o.reserve_bytes = 8 * page;
    rig::Pool pool(64 * page, 0, o);
    rig::Buffer b(pool, 8 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 8 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 6 * page));
    const uint64_t maps = fakecuda_calls("cuMemMap"), unmaps = fakecuda_calls("cuMemUnmap"), used = rig::Fake::state().used;
    ASSERT_EQ(KVC_OK, kvc_pool_resize(pool.handle, 3 * page));
    EXPECT_EQ(maps, fakecuda_calls("cuMemMap"));
    EXPECT_EQ(unmaps, fakecuda_calls("cuMemUnmap"));
    EXPECT_EQ(used - 5 * page, rig::Fake::state().used);
    // The one that is left serves any granule.
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 3 * page, page));
    EXPECT_EQ(1u, pool.stats().reused_granules);
    EXPECT_TRUE(rig::all(b.base + 3 * page, page, 0));
}

// The price of the zero granule: a mapping for each granule when a buffer is allocated, and one
// call for access. 14 GiB in granules of 2 MiB are 7,168.
TEST(Cuda, CallsOfAllocatingAndCommitting) {
    rig::Fake fake(16, 2u << 20);
    rig::Pool pool(size_t(14) << 30, 0, {});
    rig::Buffer b(pool, size_t(14) << 30);
    EXPECT_EQ(7169u, fakecuda_calls("cuMemMap")) << "one to fill the zero granule";
    EXPECT_EQ(2u, fakecuda_calls("cuMemSetAccess"));
    EXPECT_EQ(1u, fakecuda_calls("cuMemCreate"));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 8u << 20));
    EXPECT_EQ(5u, fakecuda_calls("cuMemCreate"));
    EXPECT_EQ(5u, fakecuda_calls("cuMemUnmap"));
    EXPECT_EQ(7173u, fakecuda_calls("cuMemMap"));
    EXPECT_EQ(3u, fakecuda_calls("cuMemSetAccess"));
    EXPECT_EQ(2u, fakecuda_calls("cuMemsetD8Async"));
}

// A Queue is work on the device that touches a buffer until somebody waits for it.
struct Queue {
    kvc_buffer_t * buffer = nullptr;
    int            waits  = 0;
    bool           mapped = true; // at each wait every granule was still mapped

    explicit Queue(kvc_buffer_t * b) : buffer(b) { fakecuda_queue(wait, nullptr, this); }
    ~Queue() { fakecuda_queue(nullptr, nullptr, nullptr); }
    static void wait(void * self) {
        Queue & q = *static_cast<Queue *>(self);
        const char * base = static_cast<const char *>(kvc_buffer_get_base(q.buffer));
        q.waits++;
        for (size_t g = 0; g < 8; g++) {
            q.mapped = q.mapped && fakecuda_shown(base + g * page) != 0;
        }
    }
};

TEST(Cuda, MappingsChangeAfterEarlierWork) {
    rig::Fake fake(64);
    rig::Pool pool(32 * page, 0, {});
    auto b = std::make_unique<rig::Buffer>(pool, 8 * page);
    Queue queue(b->handle);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b->handle, 0, 4 * page));
    EXPECT_EQ(1, queue.waits);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b->handle, 0, 4 * page));
    EXPECT_EQ(1, queue.waits) << "nothing changes";
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b->handle, page, 2 * page));
    EXPECT_EQ(2, queue.waits);
    b.reset();
    EXPECT_EQ(3, queue.waits);
    EXPECT_TRUE(queue.mapped);
}

TEST(Cuda, DevicesThatCannotAreNamed) {
    kvc_pool_t * pool = nullptr;
    kvc_options_t o{};
    o.cuda_library = "/nonexistent/libcuda.so";
    EXPECT_EQ(KVC_E_NO_VMM, kvc_pool_create_ex(64 * page, 0, &o, &pool));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "/nonexistent/libcuda.so")) << kvc_last_error();
    o.cuda_library = "libm.so.6"; // a library without the functions
    EXPECT_EQ(KVC_E_NO_VMM, kvc_pool_create_ex(64 * page, 0, &o, &pool));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "cuInit")) << kvc_last_error();
    setenv("KVC_CUDA_LIBRARY", "/nonexistent/chosen.so", 1);
    EXPECT_EQ(KVC_E_NO_VMM, kvc_pool_create(64 * page, 0, &pool));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "chosen.so")) << kvc_last_error();
    unsetenv("KVC_CUDA_LIBRARY");

    o.cuda_library = KVC_FAKE_LIBRARY;
    {
        rig::Fake fake(64);
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_create_ex(64 * page, 1, &o, &pool));
        o.granule_bytes = page / 2;
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_create_ex(64 * page, 0, &o, &pool));
        o.granule_bytes = 3 * page;
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_create_ex(64 * page, 0, &o, &pool));
        o.granule_bytes = 4 * page;
        EXPECT_EQ(KVC_OK, kvc_pool_create_ex(64 * page, 0, &o, &pool)) << kvc_last_error();
        EXPECT_EQ(KVC_OK, kvc_pool_destroy(pool));
        fakecuda_fail("cuInit", 1, 100, 0);
        EXPECT_EQ(KVC_E_NO_VMM, kvc_pool_create_ex(64 * page, 0, &o, &pool));
    }
    fakecuda_config without{};
    without.no_vmm = 1;
    fakecuda_reset(&without);
    EXPECT_EQ(KVC_E_NO_VMM, kvc_pool_create_ex(64 * page, 0, &o, &pool));
    EXPECT_EQ(nullptr, pool);
}

}  // namespace
