// Host memory: the kernel's accounts, and failures of its calls.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "cpu/backing.h"
#include "pool/pool.h"
#include "rig.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

using rig::page;

namespace {

// rss is the memory of the mapping that has an address, in bytes, from smaps: in memory and
// swapped out. *flags are the kernel's flags of the mapping.
size_t rss(const void * base, std::string * flags = nullptr) {
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    bool inside = false;
    size_t sum = 0;
    while (std::getline(smaps, line)) {
        unsigned long from, to;
        size_t kib;
        if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
            inside = from <= (uintptr_t) base && (uintptr_t) base < to;
        } else if (inside && (sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1 || sscanf(line.c_str(), "Swap: %zu kB", &kib) == 1)) {
            sum += kib * 1024;
        } else if (inside && flags != nullptr && line.compare(0, 8, "VmFlags:") == 0) {
            *flags = line + " ";
        }
    }
    return sum;
}

// huge_pages tells whether a buffer of a pool may get huge pages.
bool huge_pages(uint32_t flags) {
    kvc_options_t o{};
    o.flags = flags;
    rig::Pool pool(64 * page, KVC_CPU, o);
    rig::Buffer b(pool, 64 * page);
    std::string kernel;
    rss(b.base, &kernel);
    EXPECT_NE("", kernel);
    return kernel.find(" nh ") == std::string::npos;
}

TEST(Host, HugePagesAreOff) {
    EXPECT_FALSE(huge_pages(0));
    EXPECT_TRUE(huge_pages(KVC_HUGE_PAGES));
}

TEST(Host, MemoryIsThatOfCommittedGranules) {
    kvc_options_t o{};
    o.granule_bytes = 64 * 1024;
    rig::Pool pool(size_t(64) << 30, KVC_CPU, o);
    rig::Buffer b(pool, size_t(8) << 30);
    ASSERT_EQ(0u, rss(b.base));
    // Reads of uncommitted memory take none.
    uint8_t sum = 0;
    for (size_t i = 0; i < size_t(64) << 20; i += page) {
        sum |= b.base[i];
    }
    EXPECT_EQ(0, sum);
    EXPECT_EQ(0u, rss(b.base));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 1 << 20, 16 << 20));
    EXPECT_EQ(size_t(16) << 20, rss(b.base));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 1 << 20, 8 << 20));
    EXPECT_EQ(size_t(8) << 20, rss(b.base));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, size_t(8) << 30));
    EXPECT_EQ(0u, rss(b.base));
}

// Memory that stray writes took goes with the next uncommit of a range around it; prealloc
// stays.
TEST(Host, UncommittingSweepsStrayWrites) {
    kvc_options_t o{};
    o.reserve_bytes = page;
    rig::Pool pool(64 * page, KVC_CPU, o);
    rig::Buffer b(pool, 64 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 8 * page, 2 * page));
    memset(b.base, 1, 64 * page);
    EXPECT_EQ(64 * page, rss(b.base));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 20 * page));
    EXPECT_EQ(45 * page, rss(b.base)) << "all but the reserve and the rest";
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 20 * page, 44 * page)); // nothing was committed
    EXPECT_EQ(page, rss(b.base));
    EXPECT_EQ(1u, pool.stats().uncommits);
}

TEST(Host, WithoutPopulateFirstWritesBringPages) {
    kvc_options_t o{};
    o.flags = KVC_NO_POPULATE;
    rig::Pool pool(64 * page, KVC_CPU, o);
    rig::Buffer b(pool, 64 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 64 * page));
    EXPECT_EQ(0u, rss(b.base));
    b.base[0] = 1;
    EXPECT_EQ(page, rss(b.base));
}

// Failures of the system, through the table of calls.
struct Failing {
    int map_errno = 0, unmap_errno = 0;
    int advice = -1, nth = 0, advise_errno = 0; // call number nth with that advice fails
    int times  = 1;
};
Failing failing;

const kvc::System failing_system{
    [](size_t bytes) -> void * {
        if (failing.map_errno != 0) {
            errno = failing.map_errno;
            return MAP_FAILED;
        }
        return kvc::real_system().map(bytes);
    },
    [](void * at, size_t bytes) {
        if (failing.unmap_errno != 0) {
            errno = failing.unmap_errno;
            failing.unmap_errno = 0;
            return -1;
        }
        return munmap(at, bytes);
    },
    [](void * at, size_t bytes, int advice) {
        if (advice == failing.advice && failing.times > 0 && --failing.nth <= 0) {
            failing.times--;
            errno = failing.advise_errno;
            return -1;
        }
        return madvise(at, bytes, advice);
    },
};

class Faults : public ::testing::Test {
protected:
    kvc_pool_t *   pool = nullptr;
    kvc_buffer_t * b    = nullptr;
    uint8_t *      base = nullptr;

    Faults() {
        failing = {};
        kvc_options_t o{};
        o.granule_bytes = page;
        o.reserve_bytes = 2 * page;
        std::unique_ptr<kvc::Backing> backing;
        EXPECT_EQ(KVC_OK, kvc::cpu_backing(o, failing_system, backing));
        EXPECT_EQ(KVC_OK, kvc::pool_create(std::move(backing), 64 * page, o, &pool));
        EXPECT_EQ(KVC_OK, kvc_buffer_alloc(pool, 32 * page, &b));
        base = (uint8_t *) kvc_buffer_get_base(b);
    }
    ~Faults() override {
        failing = {};
        EXPECT_EQ(KVC_OK, kvc_buffer_free(b)) << kvc_last_error();
        EXPECT_EQ(KVC_OK, kvc_pool_destroy(pool)) << kvc_last_error();
    }
    kvc_stats_t stats() {
        kvc_stats_t s;
        EXPECT_EQ(KVC_OK, kvc_pool_stats(pool, &s));
        return s;
    }
};

// Granules 1, 3, 5, 7 are committed, 9 and 10 kept: a commit of 0 to 11 has runs 0, 2, 4, 6
// and 8 to 11. A failure of any run leaves everything as it was.
TEST_F(Faults, ACommitIsAllOrNothing) {
    for (int nth = 1; nth <= 6; nth++) {
        ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b, 0, 32 * page));
        ASSERT_EQ(KVC_OK, kvc_pool_resize(pool, 0)); // no prealloc
        ASSERT_EQ(KVC_OK, kvc_pool_resize(pool, 64 * page));
        for (size_t g : {1, 3, 5, 7, 9, 10}) {
            ASSERT_EQ(KVC_OK, kvc_buffer_commit(b, g * page, page));
            memset(base + g * page, int(g), page);
        }
        ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b, 9 * page, 2 * page));
        const size_t before = rss(base);
        ASSERT_EQ(6 * page, before);
        failing = {0, 0, MADV_POPULATE_WRITE, nth, ENOMEM, 1};
        ASSERT_EQ(KVC_E_NO_MEMORY, kvc_buffer_commit(b, 0, 12 * page)) << nth;
        failing = {};
        EXPECT_EQ(4 * page, stats().committed_bytes);
        EXPECT_EQ(2 * page, stats().prealloc_bytes);
        EXPECT_EQ(before, rss(base)) << nth;
        for (size_t g : {1, 3, 5, 7}) {
            EXPECT_TRUE(rig::all(base + g * page, page, g));
        }
        ASSERT_EQ(KVC_OK, kvc_buffer_commit(b, 0, 12 * page));
        EXPECT_TRUE(rig::all(base + 8 * page, 4 * page, 0));
        EXPECT_EQ(12 * page, rss(base));
    }
    EXPECT_EQ(6u, stats().failed);
}

TEST_F(Faults, KernelsWithoutPopulateAreServed) {
    failing = {0, 0, MADV_POPULATE_WRITE, 1, EINVAL, 1000};
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b, 0, 4 * page)) << kvc_last_error();
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b, 8 * page, 4 * page));
    EXPECT_EQ(999, failing.times) << "the second commit does not try again";
    base[0] = 1;
}

TEST_F(Faults, InterruptedAdviceIsRepeated) {
    failing = {0, 0, MADV_POPULATE_WRITE, 1, EINTR, 5};
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b, 0, page)) << kvc_last_error();
    failing = {0, 0, MADV_DONTNEED, 1, EAGAIN, 1000};
    EXPECT_EQ(KVC_E_SYSTEM, kvc_buffer_commit(b, page, page));
}

TEST_F(Faults, AFailedUncommitIsCountedTruly) {
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b, 0, 8 * page));
    failing = {0, 0, MADV_DONTNEED, 1, EINVAL, 1};
    EXPECT_EQ(KVC_E_SYSTEM, kvc_buffer_uncommit(b, 0, 8 * page));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), "mlockall"));
    EXPECT_EQ(2 * page, stats().prealloc_bytes); // the first two needed no call
    EXPECT_EQ(6 * page, stats().committed_bytes);
    EXPECT_EQ(KVC_OK, kvc_buffer_uncommit(b, 0, 8 * page));
    EXPECT_EQ(0u, stats().committed_bytes);
    failing = {0, 0, MADV_DONTNEED, 2, EINVAL, 1};
    EXPECT_EQ(KVC_E_SYSTEM, kvc_pool_resize(pool, 0)); // one of two was given up
    EXPECT_EQ(page, stats().prealloc_bytes);
    EXPECT_EQ(KVC_OK, kvc_pool_resize(pool, 0));
    EXPECT_EQ(0u, stats().prealloc_bytes);
}

TEST_F(Faults, AddressesThatAreRefused) {
    kvc_buffer_t * more = nullptr;
    failing.map_errno = ENOMEM;
    EXPECT_EQ(KVC_E_NO_MEMORY, kvc_buffer_alloc(pool, page, &more));
    failing.map_errno = EPERM;
    EXPECT_EQ(KVC_E_SYSTEM, kvc_buffer_alloc(pool, page, &more));
    failing.map_errno = 0;
    EXPECT_EQ(32 * page, stats().reserved_bytes);
    ASSERT_EQ(KVC_OK, kvc_buffer_alloc(pool, page, &more));
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(more, 0, page));
    failing.unmap_errno = ENOMEM;
    EXPECT_EQ(KVC_E_SYSTEM, kvc_buffer_free(more));
    EXPECT_EQ(KVC_E_INVALID, kvc_buffer_commit(more, 0, page)) << "only freeing is left";
    EXPECT_EQ(KVC_E_BUSY, kvc_pool_destroy(pool));
    EXPECT_EQ(KVC_OK, kvc_buffer_free(more));
    EXPECT_EQ(0u, stats().committed_bytes);
    EXPECT_EQ(32 * page, stats().reserved_bytes);
}

}  // namespace
