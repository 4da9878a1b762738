// Pages are read back as they were written, with any budget.
#include <algorithm>

#include "rig.h"

TEST(Pages, ReadAsZerosUntilWritten) {
    for (uint32_t frames : {1u, 3u}) {
        rig::options o;
        o.frames = frames;
        rig::pager p(o);
        for (uint32_t page = 0; page < p.pages(); page++) {
            EXPECT_EQ(1, p.check(0, page, 0)) << page;
            EXPECT_EQ(0, p.fill(0, page, 0xaa));
        }
        kvp_drop(p, 0, 3);
        EXPECT_EQ(1, p.check(0, 3, 0)) << "a frame that was used before must be cleared";
        EXPECT_EQ(1, p.check(0, 4, 0xaa));
    }
}

TEST(Pages, SurviveEviction) {
    for (int direct : {0, 1}) {
        for (uint32_t frames : {1u, 2u, 5u}) {
            rig::options o;
            o.frames = frames;
            o.direct = direct;
            o.layers = 2;
            rig::pager p(o);
            for (uint32_t i = 0; i < 2 * p.pages(); i++) {
                ASSERT_EQ(0, p.fill(i % 2, i / 2, int(i + 1)));
            }
            for (uint32_t i = 0; i < 2 * p.pages(); i++) {
                ASSERT_EQ(1, p.check(i % 2, i / 2, int(i + 1))) << i;
            }
            EXPECT_GE(p.stats().reads, 2 * p.pages() - frames - 1);
            EXPECT_LE(p.stats().frames_used, frames);
        }
    }
}

TEST(Pages, RowsGoToTheirCells) {
    rig::options o;
    o.n_cells = 40;  // the last page is not full
    o.frames  = 1;
    rig::pager p(o);
    const std::vector<uint32_t> cells{39, 0, 1, 2, 17, 16, 38, 3};
    std::vector<uint8_t> k(cells.size() * p.row_k()), v(cells.size() * p.row_v());
    for (size_t i = 0; i < cells.size(); i++) {
        memset(&k[i * p.row_k()], int(cells[i] + 1), p.row_k());
        memset(&v[i * p.row_v()], int(cells[i] + 101), p.row_v());
    }
    ASSERT_EQ(0, kvp_rows_write(p, 0, cells.data(), uint32_t(cells.size()), k.data(), nullptr));
    ASSERT_EQ(0, kvp_rows_write(p, 0, cells.data(), uint32_t(cells.size()), nullptr, v.data()));
    std::vector<uint32_t> all(40);
    for (uint32_t i = 0; i < 40; i++) {
        all[i] = 39 - i;
    }
    std::vector<uint8_t> rk(40 * p.row_k(), 0xee), rv(40 * p.row_v(), 0xee);
    ASSERT_EQ(0, kvp_rows_read(p, 0, all.data(), 40, rk.data(), rv.data()));
    for (uint32_t i = 0; i < 40; i++) {
        const bool written = std::count(cells.begin(), cells.end(), all[i]) > 0;
        EXPECT_EQ(written ? all[i] + 1 : 0, rk[i * p.row_k()]) << all[i];
        EXPECT_EQ(written ? all[i] + 101 : 0, rv[(i + 1) * p.row_v() - 1]) << all[i];
    }
    const uint32_t outside = 40;
    EXPECT_EQ(-EINVAL, kvp_rows_read(p, 0, &outside, 1, rk.data(), nullptr));
}

TEST(Drop, OfAPinnedPageHappensAtItsLastUnpin) {
    rig::options o;
    rig::pager p(o);
    kvp_page a, b;
    ASSERT_EQ(0, p.fill(0, 1, 7));
    ASSERT_EQ(0, kvp_pin(p, 0, 1, &a));
    ASSERT_EQ(0, kvp_pin(p, 0, 1, &b));
    kvp_drop(p, 0, 1);
    EXPECT_TRUE(p.holds(a, 7)) << "who holds a pin keeps what was there";
    kvp_unpin(p, 0, 1, 0);
    EXPECT_TRUE(p.holds(b, 7));

    // A pin that comes after the drop waits for the old ones to go, and sees zeros.
    std::atomic<bool> got{false};
    std::thread late([&] {
        kvp_page c;
        ASSERT_EQ(0, kvp_pin(p, 0, 1, &c));
        got = true;
        EXPECT_TRUE(p.holds(c, 0));
        EXPECT_NE(a.generation, c.generation);
        memset(c.k, 9, 1);
        kvp_unpin(p, 0, 1, 1);
    });
    memset(b.k, 8, 8);
    EXPECT_FALSE(got);
    kvp_unpin(p, 0, 1, 1);
    late.join();
    kvp_page after;
    ASSERT_EQ(0, kvp_pin(p, 0, 1, &after));
    EXPECT_EQ(9, after.k[0]);
    EXPECT_EQ(0, after.k[1]);
    kvp_unpin(p, 0, 1, 0);
}

TEST(Drop, ForgetsInAllLayersOfTheGroupOnly) {
    rig::options o;
    o.layers = 4;
    o.groups = 2;
    o.frames = 2;
    rig::pager p(o);
    for (uint32_t l = 0; l < 4; l++) {
        ASSERT_EQ(0, p.fill(l, 2, int(l + 1)));
    }
    kvp_drop(p, 1, 2);
    EXPECT_EQ(1, p.check(0, 2, 1));
    EXPECT_EQ(1, p.check(1, 2, 0));
    EXPECT_EQ(1, p.check(2, 2, 3));
    EXPECT_EQ(1, p.check(3, 2, 0));
    EXPECT_EQ(2u, p.stats().drops);
}

TEST(Reserve, TakesSlotsForWhatDoesNotFit) {
    rig::options o;
    o.frames = 4;
    rig::pager p(o);
    const uint64_t page = rig::pager::page_bytes(o);
    ASSERT_EQ(0, kvp_reserve(p, 0, 4));
    EXPECT_EQ(0u, p.stats().spill_bytes) << "it fits in memory";
    ASSERT_EQ(0, kvp_reserve(p, 0, 16));
    EXPECT_EQ(13 * page, p.stats().spill_bytes);
    ASSERT_EQ(0, kvp_reserve(p, 0, 3));
    EXPECT_EQ(13 * page, p.stats().spill_bytes) << "room once made is kept";
    EXPECT_EQ(-EINVAL, kvp_reserve(p, 0, 17));
    EXPECT_EQ(-EINVAL, kvp_reserve(p, 99, 1));
}

TEST(Reserve, IsEnoughUnderTheTightestCap) {
    for (uint32_t frames : {1u, 2u, 5u}) {
        rig::options o;
        o.frames = frames;
        o.spill_pages = 16 - frames + 1;
        rig::pager p(o);
        ASSERT_EQ(0, kvp_reserve(p, 0, 16)) << kvp_last_error();
        for (int round = 1; round <= 3; round++) {
            for (uint32_t page = 0; page < 16; page++) {
                ASSERT_EQ(0, p.fill(0, page, int(page) + 16 * round)) << kvp_last_error();
            }
            for (uint32_t page = 0; page < 16; page++) {
                ASSERT_EQ(1, p.check(0, page, int(page) + 16 * round)) << kvp_last_error();
            }
            for (int again = 0; again < 3; again++) {
                ASSERT_EQ(0, p.scan(0, p.all_pages(), [&](uint32_t page, const kvp_page & at) {
                    EXPECT_TRUE(p.holds(at, int(page) + 16 * round)) << page;
                })) << kvp_last_error();
            }
        }
        EXPECT_EQ((16 - frames + 1) * rig::pager::page_bytes(o), p.stats().spill_bytes);
    }
}

TEST(Reserve, SaysWhatIsMissing) {
    rig::options o;
    o.frames = 4;
    o.spill_pages = 3;
    rig::pager capped(o);
    EXPECT_EQ(0, kvp_reserve(capped, 0, 6));
    EXPECT_EQ(-ENOSPC, kvp_reserve(capped, 0, 8));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "limit")) << kvp_last_error();
    EXPECT_EQ(0, kvp_reserve(capped, 0, 6)) << "what was reserved before stays";
    EXPECT_EQ(0, kvp_pager_error(capped, nullptr)) << "a refusal is not an error of the pager";

    o.spill = false;
    o.spill_pages = 0;
    rig::pager none(o);
    EXPECT_EQ(0, kvp_reserve(none, 0, 4));
    EXPECT_EQ(-ENOSPC, kvp_reserve(none, 0, 5));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "spill directory")) << kvp_last_error();
}

TEST(Room, ThatEndsIsStickyAndFreedByDrop) {
    rig::options o;
    o.frames = 2;
    o.spill_pages = 2;
    {
        rig::pager p(o);
        for (uint32_t page = 0; page < 3; page++) {
            ASSERT_EQ(0, p.fill(0, page, 5));
        }
        kvp_drop(p, 0, 0);
        EXPECT_EQ(0, p.fill(0, 3, 6)) << "a dropped page makes room: " << kvp_last_error();
        EXPECT_EQ(1, p.check(0, 1, 5));
    }
    rig::pager p(o);
    int rc = 0;
    uint32_t page = 0;
    while (rc == 0 && page < 16) {
        rc = p.fill(0, page++, 5);
    }
    EXPECT_EQ(-ENOSPC, rc);
    EXPECT_EQ(5u, page) << "two frames and two slots hold four pages";
    EXPECT_EQ(-ENOSPC, kvp_pager_error(p, nullptr));
    EXPECT_EQ(-ENOSPC, p.scan(0, {0}));

    o.spill = false;
    o.spill_pages = 0;
    rig::pager memory(o);
    EXPECT_EQ(0, memory.fill(0, 0, 5));
    EXPECT_EQ(0, memory.fill(0, 1, 5));
    EXPECT_EQ(-ENOSPC, memory.fill(0, 2, 5));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "no spill")) << kvp_last_error();
}
