// Many threads on one pool, and a child made by fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "rig.h"

using rig::page;

namespace {

class Threads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Devices, Threads, ::testing::Values(KVC_CPU, 0),
                         [](const auto & info) { return info.param == KVC_CPU ? "Host" : "Cuda"; });

// Each thread has its own range of a shared buffer and a buffer of its own; others resize and
// read statistics meanwhile.
TEST_P(Threads, ShareAPool) {
    rig::Fake fake(256);
    kvc_options_t o{};
    o.reserve_bytes = 8 * page;
    rig::Pool pool(256 * page, GetParam(), o);
    rig::Buffer shared(pool, 64 * page);
    std::atomic<bool> stop{false};
    std::atomic<int>  refused{0};
    const auto worker = [&](size_t id) {
        std::mt19937 random(id);
        for (int i = 0; i < 300; i++) {
            const size_t g = id * 16 + random() % 15;
            const int rc   = kvc_buffer_commit(shared.handle, g * page, 2 * page);
            if (rc == KVC_OK) {
                memset(shared.base + g * page, int(id + 1), 2 * page);
                EXPECT_TRUE(rig::all(shared.base + g * page, 2 * page, id + 1));
            } else {
                EXPECT_EQ(KVC_E_LIMIT, rc);
                refused++;
            }
            EXPECT_EQ(KVC_OK, kvc_buffer_uncommit(shared.handle, g * page, 2 * page));
            rig::Buffer own(pool, 3 * page);
            EXPECT_EQ(KVC_OK, own.rc);
        }
    };
    const auto watcher = [&] {
        for (size_t i = 0; !stop; i++) {
            kvc_pool_resize(pool.handle, i % 2 == 0 ? 3 * page : 256 * page);
            const kvc_stats_t s = pool.stats();
            EXPECT_LE(s.committed_bytes, 8 * page);
            std::this_thread::yield();
        }
    };
    std::vector<std::thread> threads;
    std::thread watching(watcher);
    for (size_t id = 0; id < 4; id++) {
        threads.emplace_back(worker, id);
    }
    for (auto & t : threads) {
        t.join();
    }
    stop = true;
    watching.join();
    EXPECT_EQ(0u, pool.stats().committed_bytes);
}

// Of threads that free one buffer, and destroy one pool, exactly one succeeds.
TEST_P(Threads, FreeOnce) {
    rig::Fake fake(64);
    for (int round = 0; round < 50; round++) {
        kvc_options_t o{};
        o.granule_bytes = page;
        o.cuda_library  = KVC_FAKE_LIBRARY;
        kvc_pool_t *   pool = nullptr;
        kvc_buffer_t * b    = nullptr;
        ASSERT_EQ(KVC_OK, kvc_pool_create_ex(16 * page, GetParam(), &o, &pool));
        ASSERT_EQ(KVC_OK, kvc_buffer_alloc(pool, 8 * page, &b));
        std::atomic<int> freed{0}, destroyed{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++) {
            threads.emplace_back([&] {
                kvc_buffer_commit(b, 0, 4 * page);
                freed += kvc_buffer_free(b) == KVC_OK;
                destroyed += kvc_pool_destroy(pool) == KVC_OK;
            });
        }
        for (auto & t : threads) {
            t.join();
        }
        EXPECT_EQ(1, freed);
        EXPECT_EQ(1, destroyed);
    }
}

// Threads that free one buffer wait behind a long commit; the first frees, the others are told.
TEST(Freeing, HappensOnceBehindALongCommit) {
    rig::Pool pool(size_t(128) << 20, KVC_CPU, {});
    rig::Buffer big(pool, size_t(64) << 20);
    kvc_buffer_t * b = nullptr;
    ASSERT_EQ(KVC_OK, kvc_buffer_alloc(pool.handle, page, &b));
    std::atomic<bool> begun{false};
    std::atomic<int>  freed{0}, refused{0};
    std::thread commits([&] {
        begun = true;
        EXPECT_EQ(KVC_OK, kvc_buffer_commit(big.handle, 0, size_t(64) << 20));
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            while (!begun) {
            }
            std::this_thread::yield();
            (kvc_buffer_free(b) == KVC_OK ? freed : refused)++;
        });
    }
    commits.join();
    for (auto & t : threads) {
        t.join();
    }
    EXPECT_EQ(1, freed);
    EXPECT_EQ(3, refused);
}

// Sentences are each thread's own.
TEST(Errors, ArePerThread) {
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_free((kvc_buffer_t *) 0x123));
    const std::string mine = kvc_last_error();
    std::thread([] {
        EXPECT_STREQ("", kvc_last_error());
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_destroy((kvc_pool_t *) 0x456));
    }).join();
    EXPECT_EQ(mine, kvc_last_error());
}

#if defined(__SANITIZE_THREAD__)
constexpr bool can_fork = false; // a child of a process with threads may not start any under TSan
#else
constexpr bool can_fork = true;
#endif

// A child cannot use its parent's pool, even where another thread of the parent was inside, and
// can make its own.
TEST(Fork, AChildHasItsOwnPools) {
    if (!can_fork) {
        GTEST_SKIP() << "fork beside threads under a sanitizer of threads";
    }
    kvc_options_t o{};
    rig::Pool pool(64 * page, KVC_CPU, o);
    rig::Buffer b(pool, 16 * page);
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            kvc_buffer_commit(b.handle, 0, 16 * page);
            kvc_buffer_uncommit(b.handle, 0, 16 * page);
        }
    });
    for (int i = 0; i < 50; i++) {
        const pid_t child = fork();
        if (child == 0) {
            kvc_pool_t * own = nullptr;
            const bool ok = kvc_buffer_commit(b.handle, 0, 1) == KVC_E_INVALID && kvc_buffer_free(b.handle) == KVC_E_INVALID &&
                kvc_pool_destroy(pool.handle) == KVC_E_INVALID && kvc_pool_create(1 << 20, KVC_CPU, &own) == KVC_OK &&
                kvc_pool_destroy(own) == KVC_OK;
            _exit(ok ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(child, waitpid(child, &status, 0));
        ASSERT_EQ(0, status);
    }
    stop = true;
    busy.join();
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, page));
}

}  // namespace
