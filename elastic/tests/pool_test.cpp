// Sizes, limits, ranges and handles of a pool, which both backings share.
#include <unistd.h>

#include <climits>

#include "rig.h"

using rig::page;

namespace {

class PoolTest : public ::testing::TestWithParam<int> {
protected:
    kvc_options_t options;
    PoolTest() : options{} {}
    rig::Fake fake{64};
};

INSTANTIATE_TEST_SUITE_P(Devices, PoolTest, ::testing::Values(KVC_CPU, 0),
                         [](const auto & info) { return info.param == KVC_CPU ? "Host" : "Cuda"; });

TEST_P(PoolTest, CommittedMemoryIsZeroAndKeepsItsBytes) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 2 * page, 3 * page)) << kvc_last_error();
    ASSERT_TRUE(rig::all(b.base + 2 * page, 3 * page, 0));
    memset(b.base + 2 * page, 9, 3 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 16 * page));
    EXPECT_TRUE(rig::all(b.base + 2 * page, 3 * page, 9));
    EXPECT_TRUE(rig::all(b.base, 2 * page, 0));
    EXPECT_TRUE(rig::all(b.base + 5 * page, 11 * page, 0));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 2 * page, page));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 2 * page, page));
    EXPECT_TRUE(rig::all(b.base + 2 * page, page, 0));
    EXPECT_TRUE(rig::all(b.base + 3 * page, 2 * page, 9));
}

TEST_P(PoolTest, UncommittedMemoryMayBeTouched) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    EXPECT_TRUE(rig::all(b.base, 16 * page, 0));
    memset(b.base, 0xff, 16 * page); // stray writes
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page));
    EXPECT_TRUE(rig::all(b.base, 4 * page, 0));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 4 * page));
    memset(b.base, 0xee, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page));
    EXPECT_TRUE(rig::all(b.base, 4 * page, 0));
}

TEST_P(PoolTest, RangesNeedNotBeAligned) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 4 * page + 100);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, page - 1, 2)); // granules 0 and 1
    EXPECT_EQ(2 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page + 100));
    EXPECT_EQ(5 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 1, 3 * page)); // 1 and 2 alone are inside
    EXPECT_EQ(3 * page, pool.stats().committed_bytes);
    EXPECT_EQ(1, kvc_buffer_committed(b.handle, 0, page));
    EXPECT_EQ(0, kvc_buffer_committed(b.handle, page, 1));
    EXPECT_EQ(1, kvc_buffer_committed(b.handle, page, 0));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 1, 10)); // a part of a granule
    EXPECT_EQ(3 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 4 * page, 99)); // not up to the end
    EXPECT_EQ(3 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 4 * page, 100));
    EXPECT_EQ(2 * page, pool.stats().committed_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 4 * page + 100, 0)); // nothing, at the end
    EXPECT_EQ(2 * page, pool.stats().committed_bytes);
}

TEST_P(PoolTest, ALimitHoldsAndEvictsNothing) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_pool_resize(pool.handle, 4 * page + 1));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page));
    memset(b.base, 5, 4 * page);
    EXPECT_EQ(KVC_E_LIMIT, kvc_buffer_commit(b.handle, 3 * page, 2 * page));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "16384")) << kvc_last_error();
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page)); // nothing new
    EXPECT_EQ(KVC_E_OVER, kvc_pool_resize(pool.handle, 2 * page));
    EXPECT_TRUE(rig::all(b.base, 4 * page, 5));
    EXPECT_EQ(2 * page, pool.stats().limit_bytes);
    EXPECT_EQ(4 * page, pool.stats().committed_bytes);
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 4 * page));
    EXPECT_EQ(KVC_E_LIMIT, kvc_buffer_commit(b.handle, 4 * page, 1));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 2 * page));
    EXPECT_EQ(KVC_E_LIMIT, kvc_buffer_commit(b.handle, 4 * page, 1));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 2 * page, page));
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 4 * page, 1));
    EXPECT_EQ(KVC_OK, kvc_pool_resize(pool.handle, SIZE_MAX));
    EXPECT_EQ(32 * page, pool.stats().limit_bytes);
    EXPECT_EQ(KVC_E_OVER, kvc_pool_resize(pool.handle, 0));
    EXPECT_EQ(3u, pool.stats().refused);
}

TEST_P(PoolTest, PreallocIsReusedAndGivenUpFirst) {
    options.reserve_bytes = 3 * page + 17;
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_pool_resize(pool.handle, 8 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 8 * page));
    memset(b.base, 7, 8 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 5 * page));
    EXPECT_EQ(3 * page, pool.stats().prealloc_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, page)); // one that is kept
    EXPECT_TRUE(rig::all(b.base, page, 0));
    EXPECT_EQ(1u, pool.stats().reused_granules);
    EXPECT_EQ(2 * page, pool.stats().prealloc_bytes);
    // Four more elsewhere reach the limit only without prealloc.
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 8 * page, 4 * page));
    EXPECT_EQ(8 * page, pool.stats().committed_bytes);
    EXPECT_EQ(0u, pool.stats().prealloc_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 8 * page, 4 * page));
    EXPECT_EQ(3 * page, pool.stats().prealloc_bytes);
    ASSERT_EQ(KVC_OK, kvc_pool_resize(pool.handle, 6 * page));
    EXPECT_EQ(2 * page, pool.stats().prealloc_bytes);
    ASSERT_EQ(KVC_E_OVER, kvc_pool_resize(pool.handle, 3 * page));
    EXPECT_EQ(0u, pool.stats().prealloc_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, page)); // over the limit nothing is kept
    EXPECT_EQ(0u, pool.stats().prealloc_bytes);
}

TEST_P(PoolTest, WrongRangesAndSizesAreRefused) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    const size_t end = 16 * page;
    for (const auto & range : {std::pair<size_t, size_t>{end, 1}, {end + 1, 0}, {0, end + 1}, {1, end}, {SIZE_MAX, 1}, {1, SIZE_MAX},
                               {SIZE_MAX, SIZE_MAX}, {end - 1, SIZE_MAX - end + 2}}) {
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_commit(b.handle, range.first, range.second));
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_uncommit(b.handle, range.first, range.second));
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_committed(b.handle, range.first, range.second));
    }
    kvc_buffer_t * more = (kvc_buffer_t *) 1;
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_alloc(pool.handle, 0, &more));
    EXPECT_EQ(nullptr, more);
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_alloc(pool.handle, SIZE_MAX, &more));
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_alloc(pool.handle, size_t(1) << 46, &more));
    EXPECT_EQ(KVC_E_LIMIT, kvc_buffer_alloc(pool.handle, 16 * page + 1, &more));
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_alloc(pool.handle, 1, nullptr));
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_stats(pool.handle, nullptr));
    EXPECT_EQ(16 * page, pool.stats().reserved_bytes);
    EXPECT_EQ(0u, pool.stats().committed_bytes);
}

TEST_P(PoolTest, HandlesAreChecked) {
    rig::Pool pool(32 * page, GetParam(), options);
    kvc_buffer_t * b = nullptr;
    ASSERT_EQ(KVC_OK, kvc_buffer_alloc(pool.handle, page, &b));
    EXPECT_EQ(KVC_E_BUSY, kvc_pool_destroy(pool.handle));
    ASSERT_EQ(KVC_OK, kvc_buffer_free(b));
    kvc_buffer_t * next = nullptr;
    ASSERT_EQ(KVC_OK, kvc_buffer_alloc(pool.handle, page, &next));
    EXPECT_NE(b, next) << "a handle is used once";
    for (kvc_buffer_t * wrong : {b, (kvc_buffer_t *) nullptr, (kvc_buffer_t *) pool.handle, (kvc_buffer_t *) 4096}) {
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_free(wrong));
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_commit(wrong, 0, 1));
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_uncommit(wrong, 0, 1));
        EXPECT_EQ(KVC_E_INVALID, kvc_buffer_committed(wrong, 0, 1));
        EXPECT_EQ(nullptr, kvc_buffer_get_base(wrong));
    }
    kvc_stats_t s;
    uint64_t a, t;
    for (kvc_pool_t * wrong : {(kvc_pool_t *) nullptr, (kvc_pool_t *) next}) {
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_destroy(wrong));
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_resize(wrong, 1));
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_stats(wrong, &s));
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_memory(wrong, &a, &t));
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_attach_shm(wrong, "kvtier-x"));
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_poll_shm(wrong));
    }
    ASSERT_EQ(KVC_OK, kvc_buffer_free(next));
}

TEST_P(PoolTest, StatsCount) {
    rig::Pool pool(32 * page, GetParam(), options);
    rig::Buffer b(pool, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 6 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 6 * page)); // nothing to do: not counted
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 2 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 2 * page));
    const kvc_stats_t s = pool.stats();
    EXPECT_EQ(page, s.granule_bytes);
    EXPECT_EQ(32 * page, s.va_bytes);
    EXPECT_EQ(32 * page, s.limit_bytes);
    EXPECT_EQ(16 * page, s.reserved_bytes);
    EXPECT_EQ(4 * page, s.committed_bytes);
    EXPECT_EQ(6 * page, s.peak_bytes);
    EXPECT_EQ(1u, s.buffers);
    EXPECT_EQ(1u, s.commits);
    EXPECT_EQ(6u, s.commit_granules);
    EXPECT_EQ(1u, s.uncommits);
    EXPECT_EQ(2u, s.uncommit_granules);
    EXPECT_GT(s.commit_ns, 0u);
    EXPECT_GT(s.uncommit_ns, 0u);
    uint64_t free_bytes = 0, total = 0;
    ASSERT_EQ(KVC_OK, kvc_pool_memory(pool.handle, &free_bytes, &total));
    EXPECT_GT(free_bytes, 0u);
    EXPECT_GT(total, free_bytes);
}

TEST(Creating, RefusesWrongOptions) {
    const auto code = [](size_t va, int device, kvc_options_t o) { return rig::Pool(va, device, o).rc; };
    kvc_options_t o{};
    EXPECT_EQ(KVC_E_INVALID, code(0, KVC_CPU, o));
    EXPECT_EQ(KVC_E_INVALID, code(page - 1, KVC_CPU, o));
    EXPECT_EQ(KVC_E_INVALID, code(page, -2, o));
    EXPECT_EQ(KVC_E_INVALID, code(page, INT_MIN, o));
    for (size_t granule : {size_t(1), size_t(2048), size_t(4097), size_t(12288), size_t(4) << 20, SIZE_MAX, size_t(1) << 63}) {
        o.granule_bytes = granule;
        EXPECT_EQ(KVC_E_INVALID, code(size_t(1) << 30, KVC_CPU, o)) << granule;
    }
    o.granule_bytes = 0;
    o.flags = 16;
    EXPECT_EQ(KVC_E_INVALID, code(page, KVC_CPU, o));
    o.flags = 0;
    o.limit_bytes = o.reserve_bytes = SIZE_MAX;
    rig::Pool pool(8 * page, KVC_CPU, o);
    EXPECT_EQ(8 * page, pool.stats().limit_bytes);
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_create(page, KVC_CPU, nullptr));
    // Addresses that no machine has: refused when a buffer asks for them.
    o.granule_bytes = 2u << 20;
    rig::Pool huge(SIZE_MAX, KVC_CPU, o);
    kvc_buffer_t * b = nullptr;
    EXPECT_EQ(KVC_E_NO_MEMORY, kvc_buffer_alloc(huge.handle, size_t(1) << 47, &b)) << kvc_last_error();
}

}  // namespace
