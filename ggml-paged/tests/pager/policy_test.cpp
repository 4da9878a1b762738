// What stays in memory: seen by the transfers that are made.
#include <algorithm>

#include <sys/mman.h>
#include <unistd.h>

#include "rig.h"

namespace {

void fill_all(rig::pager & p) {
    for (uint32_t page = 0; page < p.pages(); page++) {
        for (uint32_t l = 0; l < p.opt().layers; l++) {
            ASSERT_EQ(0, p.fill(l, page, int(page + 1))) << kvp_last_error();
        }
    }
}

// One forward pass. In an ordered scan the tail, being last, is the page used most recently.
void pass(rig::pager & p, bool write_tail, bool ordered = false) {
    const auto list = p.all_pages();
    const std::vector<uint8_t> row(std::max(p.row_k(), p.row_v()), 3);
    const uint32_t cell = p.opt().n_cells - 1;
    for (uint32_t l = 0; l < p.opt().layers; l++) {
        if (write_tail) {
            ASSERT_EQ(0, kvp_rows_write(p, l, &cell, 1, row.data(), row.data()));
        }
        if (!ordered) {
            ASSERT_EQ(0, p.scan(l, list));
            continue;
        }
        kvp_scan * s = nullptr;
        ASSERT_EQ(0, kvp_scan_begin(p, l, list.data(), uint32_t(list.size()), 1, 0, &s));
        for (uint32_t i = 0; i < list.size(); i++) {
            kvp_page at;
            ASSERT_EQ(0, kvp_scan_wait(s, i, &at));
            kvp_scan_release(s, i);
        }
        kvp_scan_end(s);
    }
}

}  // namespace

TEST(Policy, ACycleOverFourTimesTheBudgetHitsAQuarter) {
    rig::options o;
    o.layers  = 8;
    o.n_cells = 16 * 64;
    o.frames  = 8 * 64 / 4;
    rig::pager p(o);
    fill_all(p);
    for (int warm = 0; warm < 3; warm++) {
        pass(p, false);
    }
    const kvp_stats a = p.stats();
    for (int i = 0; i < 8; i++) {
        pass(p, false);
    }
    const kvp_stats b = p.stats();
    const double visits = 8.0 * 8 * 64;
    const double read   = double(b.reads - a.reads) / visits;
    EXPECT_LT(read, 0.80) << "a quarter of the pages fits, so about three quarters are read";
    EXPECT_GT(read, 0.70);
    EXPECT_LE(b.writes, 8u * 64) << "pages that are only read are written once";
    EXPECT_EQ(visits, double(b.hits + b.misses - a.hits - a.misses));
}

TEST(Policy, TheTailIsNotWrittenAtEachStep) {
    for (bool ordered : {false, true}) {
        rig::options o;
        o.layers  = 8;
        o.n_cells = 16 * 32;
        o.frames  = 24;
        rig::pager p(o);
        fill_all(p);
        for (int i = 0; i < 3; i++) {
            pass(p, true, ordered);
        }
        const kvp_stats a = p.stats();
        for (int i = 0; i < 20; i++) {
            pass(p, true, ordered);
        }
        const kvp_stats b = p.stats();
        // A page of the kept set that leaves after all is written once; 184 rows were
        // written to the eight tails.
        EXPECT_LE(b.writes, 8u * 32 + 8) << "the tails stay in memory";
        EXPECT_LT(double(b.reads - a.reads), 0.95 * 20 * 8 * 32);
    }
}

TEST(Policy, PagesOutsideTheCycleLeave) {
    rig::options o;
    o.n_cells = 16 * 32;
    o.frames  = 16;
    rig::pager p(o);
    fill_all(p);
    std::vector<uint32_t> old, now;
    for (uint32_t i = 0; i < 12; i++) {
        old.push_back(i);
        now.push_back(i + 20);
    }
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(0, p.scan(0, old));
    }
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(0, p.scan(0, now));
    }
    const uint64_t reads = p.stats().reads;
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(0, p.scan(0, now));
    }
    EXPECT_EQ(reads, p.stats().reads) << "twelve pages fit into sixteen frames once the old ones are gone";
}

TEST(Policy, NothingIsWrittenWhileEverythingFits) {
    rig::options o;
    o.frames = 16;
    rig::pager p(o);
    fill_all(p);
    for (int i = 0; i < 5; i++) {
        pass(p, true);
    }
    EXPECT_EQ(0u, p.stats().writes);
    EXPECT_EQ(0u, p.stats().reads);
    EXPECT_EQ(16u, p.stats().frames_used);
}

TEST(Policy, TheNextLayerIsReadAhead) {
    rig::options o;
    o.layers = 4;
    o.frames = 24;
    rig::pager p(o);
    fill_all(p);
    for (int i = 0; i < 4; i++) {
        pass(p, false);
    }
    EXPECT_GT(p.stats().prefetches, 0u);
    EXPECT_GT(p.stats().prefetch_hits, 0u);
    EXPECT_LE(p.stats().prefetch_hits, p.stats().prefetches);
}

TEST(Policy, PrefetchNeitherFailsNorPushesOut) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    fill_all(p);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 3, &at));
    const uint32_t list[] = {1, 99, 2, 3};
    kvp_prefetch(p, 0, list, 4);
    kvp_prefetch(p, 9, list, 4);
    EXPECT_TRUE(p.holds(at, 4));
    kvp_unpin(p, 0, 3, 0);
    kvp_prefetch(p, 0, list, 4);
    EXPECT_EQ(1, p.check(0, 1, 2));
}

TEST(Memory, OfDroppedPagesGoesBackToTheSystem) {
    rig::options o;
    o.page_cells = 256;
    o.n_cells    = 256 * 16;
    o.frames     = 16;
    rig::pager p(o);
    fill_all(p);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 15, &at));
    kvp_unpin(p, 0, 15, 0);
    const size_t system_page = size_t(sysconf(_SC_PAGESIZE));
    const size_t bytes       = p.stats().arena_bytes;
    // Frames are given out from the start of the arena, so the last page is in the last.
    uint8_t * arena = at.k - (bytes - bytes / 16);
    const auto resident = [&] {
        std::vector<unsigned char> in(bytes / system_page);
        EXPECT_EQ(0, mincore(arena, bytes, in.data()));
        return size_t(std::count_if(in.begin(), in.end(), [](unsigned char c) { return c & 1; })) * system_page;
    };
    EXPECT_EQ(bytes, resident());
    for (uint32_t page = 0; page < 12; page++) {
        kvp_drop(p, 0, page);
    }
    EXPECT_EQ(bytes / 4, resident());
    EXPECT_EQ(4u, p.stats().frames_used);
    EXPECT_EQ(1, p.check(0, 0, 0));
    EXPECT_EQ(1, p.check(0, 13, 14));
}
