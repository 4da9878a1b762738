// The emulated GPU itself: late operations, in stream order, and the misuse that it
// reports.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cuda/arena_block.h"
#include "emulator/gpu.h"

namespace {

using namespace kvp_gpu;
using emulator::emulated_gpu;

// CUDA aligns page-locked memory to 512 bytes at times; the pager needs more.
TEST(gpu, an_arena_is_aligned_in_any_block) {
    constexpr size_t bytes = 3 * KVP_ALIGN;
    std::vector<char> memory(2 * KVP_ALIGN + arena_block_bytes(bytes));
    for (size_t offset = 0; offset <= KVP_ALIGN; offset += 8) {
        char * const start = memory.data() + offset;
        char * const base  = static_cast<char *>(arena_block(start));
        ASSERT_EQ(uintptr_t(base) % KVP_ALIGN, 0u);
        ASSERT_GE(base, start + sizeof(void *));
        ASSERT_LE(base + bytes, start + arena_block_bytes(bytes));
        memset(base, 0xAB, bytes);
        ASSERT_EQ(arena_block_start(base), start);
    }
}

TEST(gpu, copies_happen_late_but_by_the_time_of_their_event) {
    uint32_t late = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        emulated_gpu g(seed);
        g.make_events(1);
        void * memory = g.pool_alloc(64);
        char   from[64] = "before", to[64] = "";
        g.copy_in(stream_compute, memory, from, sizeof from);
        g.copy_out(stream_compute, to, memory, sizeof to);
        g.record(stream_compute, 0);
        late += to[0] == 0;
        g.sync(0);
        EXPECT_STREQ(to, "before");
        g.pool_free(memory);
        EXPECT_EQ(g.wrong(), "");
    }
    EXPECT_GT(late, 0u);
}

// Host memory that changes before the copy was waited for: the copy may take either.
TEST(gpu, a_copy_reads_host_memory_when_it_happens) {
    uint32_t changed = 0;
    for (uint64_t seed = 0; seed < 30; ++seed) {
        emulated_gpu g(seed);
        void * memory = g.pool_alloc(16);
        char   from[16] = "old", to[16] = "";
        g.copy_in(stream_compute, memory, from, sizeof from);
        std::memcpy(from, "new", 4);
        g.copy_out(stream_compute, to, memory, sizeof to);
        g.drain();
        changed += std::string(to) == "new";
        g.pool_free(memory);
    }
    EXPECT_GT(changed, 0u);
}

TEST(gpu, fresh_memory_is_poisoned) {
    emulated_gpu g(1);
    float x[4] = {};
    void * memory = g.pool_alloc(sizeof x);
    g.copy_out(stream_compute, x, memory, sizeof x);
    g.drain();
    EXPECT_NE(x[3], x[3]);
    g.pool_free(memory);
}

TEST(gpu, a_race_between_streams_is_reported) {
    emulated_gpu g(1);
    char host[32] = {};
    void * memory = g.pool_alloc(32);
    g.copy_in(stream_copy, memory, host, 32);
    EXPECT_NE(g.wrong().find("copy"), std::string::npos) << g.wrong();
    g.pool_free(memory);
}

TEST(gpu, memory_outside_of_the_pool_is_reported) {
    emulated_gpu g(1);
    char host[32] = {};
    void * memory = g.pool_alloc(32);
    g.copy_in(stream_compute, memory, host, 32);
    EXPECT_EQ(g.wrong(), "");
    g.pool_free(memory);
    g.zero(memory, 32);
    EXPECT_NE(g.wrong().find("no longer"), std::string::npos) << g.wrong();
}

TEST(gpu, memory_is_freed_in_the_reverse_order) {
    emulated_gpu g(1);
    void * a = g.pool_alloc(32);
    void * b = g.pool_alloc(32);
    g.pool_free(a);
    EXPECT_NE(g.wrong().find("reverse"), std::string::npos) << g.wrong();
    g.pool_free(b);
}

TEST(gpu, kept_memory_goes_back_when_nobody_uses_it) {
    emulated_gpu g(1);
    char host[32] = {};
    void * first = g.keep_alloc(32);
    void * second = g.keep_alloc(32);
    g.copy_in(stream_compute, first, host, 32);
    g.copy_within(second, first, 32);
    g.drain();
    g.keep_free(first);
    EXPECT_EQ(g.wrong(), "");
    g.copy_out(stream_compute, host, second, 32);
    g.keep_free(second);
    EXPECT_NE(g.wrong().find("may use it"), std::string::npos) << g.wrong();
    EXPECT_EQ(g.kept_blocks(), 0u);
}

TEST(gpu, kept_memory_ends_somewhere) {
    emulated_gpu g(1);
    void * memory = g.keep_alloc(32);
    g.zero(memory, 33);
    EXPECT_NE(g.wrong().find("not the device's"), std::string::npos) << g.wrong();
    g.drain();
    g.keep_free(memory);
}

TEST(gpu, kept_memory_and_the_pool_share_the_device) {
    emulator::faults f;
    f.memory = 10000;
    emulated_gpu g(1, f);
    uint64_t free = 0, total = 0;
    void * memory = g.keep_alloc(6000);
    EXPECT_EQ(g.memory(&free, &total), 0);
    EXPECT_EQ(free, 4000u);
    EXPECT_EQ(total, 10000u);
    EXPECT_EQ(g.pool_alloc(5000), nullptr);
    EXPECT_EQ(g.keep_alloc(5000), nullptr);
    g.keep_free(memory);
    void * pool = g.pool_alloc(5000);
    EXPECT_NE(pool, nullptr);
    g.pool_free(pool);
}

} // namespace
