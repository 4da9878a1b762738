// Many threads on one pager; meant to run under the thread and address sanitizers too.
#include <random>

#include "rig.h"

namespace {

class Threads : public testing::TestWithParam<uint32_t> {};

// Each of four threads owns pages (page % 4) and writes, rotates away, drops and checks
// them, while two threads scan pages that no thread changes.
TEST_P(Threads, MixEverything) {
    rig::options o;
    o.frames = GetParam();
    o.layers = 3;
    o.groups = 3;
    rig::pager p(o);
    for (uint32_t page = 0; page < 16; page++) {
        ASSERT_EQ(0, p.fill(2, page, int(page + 1)));
    }
    rig::in_threads(6, [&](uint32_t t) {
        std::mt19937 rng(t);
        std::vector<int> content(32, 0);
        for (int i = 0; i < 150; i++) {
            if (t >= 4) {
                ASSERT_EQ(0, p.scan(2, p.all_pages(), [&](uint32_t page, const kvp_page & at) {
                    EXPECT_TRUE(p.holds(at, int(page + 1)));
                })) << kvp_last_error();
                continue;
            }
            const uint32_t layer = rng() % 2, page = rng() % 4 * 4 + t;
            int & c = content[layer * 16 + page];
            switch (rng() % 5) {
                case 0:
                    c = int(rng() % 255);
                    ASSERT_EQ(0, p.fill(layer, page, c)) << kvp_last_error();
                    break;
                case 1:
                    kvp_drop(p, layer, page);
                    c = 0;
                    break;
                case 2: {
                    const uint32_t list[] = {page, (page + 4) % 16};
                    kvp_prefetch(p, layer, list, 2);
                    break;
                }
                default:
                    ASSERT_EQ(1, p.check(layer, page, c)) << "page " << page << " of layer " << layer;
            }
        }
    });
    EXPECT_EQ(0, kvp_pager_error(p, nullptr));
}

// Writers of different cells of the same pages.
TEST_P(Threads, WriteCellsOfTheSamePages) {
    rig::options o;
    o.frames  = GetParam();
    o.n_cells = 64;
    rig::pager p(o);
    rig::in_threads(4, [&](uint32_t t) {
        std::vector<uint8_t> k(p.row_k()), back(p.row_k());
        for (int i = 0; i < 200; i++) {
            const uint32_t cell = uint32_t(i) % 16 * 4 + t;
            memset(k.data(), i, k.size());
            ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, k.data(), nullptr)) << kvp_last_error();
            ASSERT_EQ(0, kvp_rows_read(p, 0, &cell, 1, back.data(), nullptr));
            ASSERT_EQ(k, back);
        }
    });
}

// Drops of pages that other threads hold and wait for: no thread hangs, and reads give
// either written rows or zeros.
TEST_P(Threads, DropWhatOthersUse) {
    rig::options o;
    o.frames  = GetParam();
    o.n_cells = 64;
    rig::pager p(o);
    rig::in_threads(5, [&](uint32_t t) {
        std::mt19937 rng(t);
        for (int i = 0; i < 300; i++) {
            const uint32_t page = rng() % 4;
            kvp_page at;
            switch (t) {
                case 0: kvp_drop(p, 0, page); break;
                case 1: {
                    const uint64_t cells = 0;
                    const kvp_plane turn{0, 1, {0, -1, 1, 0}};
                    ASSERT_EQ(0, kvp_rotate(p, 0, page, &cells, &turn, 1));
                    ASSERT_EQ(0, kvp_reserve(p, 0, page));
                    break;
                }
                case 2: {
                    const uint32_t cell = page * 16 + rng() % 16;
                    const std::vector<uint8_t> k(p.row_k(), 7);
                    ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, k.data(), nullptr));
                    break;
                }
                case 3:
                    ASSERT_EQ(0, p.scan(0, {page, (page + 1) % 4}));
                    break;
                default:
                    ASSERT_EQ(0, kvp_pin(p, 0, page, &at));
                    EXPECT_EQ(0, at.v[0]);
                    kvp_unpin(p, 0, page, 0);
            }
        }
    });
}

// Pages are rotated by one thread while others scan them: the result is one of the turns.
TEST_P(Threads, RotateWhileOthersScan) {
    rig::options o;
    o.frames   = GetParam();
    o.dk       = 2;
    o.kv_heads = 1;
    rig::pager p(o);
    const std::vector<uint16_t> row{0x3c00, 0x4000};  // 1, 2
    for (uint32_t cell = 0; cell < o.n_cells; cell++) {
        ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, row.data(), nullptr));
    }
    const kvp_plane turn{0, 1, {0, -1, 1, 0}};
    const uint64_t all = ~uint64_t(0);
    rig::in_threads(3, [&](uint32_t t) {
        for (uint32_t i = 0; i < 672; i++) {
            if (t == 0) {
                ASSERT_EQ(0, kvp_rotate(p, 0, i % 16, &all, &turn, 1));
            } else if (i % 16 == 0) {
                ASSERT_EQ(0, p.scan(0, p.all_pages(), [](uint32_t, const kvp_page & at) {
                    const auto * x = reinterpret_cast<const uint16_t *>(at.k);
                    const int a = x[0] & 0x7fff, b = x[1] & 0x7fff;
                    EXPECT_TRUE((a == 0x3c00 && b == 0x4000) || (a == 0x4000 && b == 0x3c00));
                }));
            }
        }
    });
    // 42 quarter turns each: (1, 2) has become (-1, -2).
    for (uint32_t page = 0; page < 16; page++) {
        kvp_page at;
        ASSERT_EQ(0, kvp_pin(p, 0, page, &at));
        const auto * x = reinterpret_cast<const uint16_t *>(at.k);
        EXPECT_EQ(0xbc00, x[0]);
        EXPECT_EQ(0xc000, x[1]);
        kvp_unpin(p, 0, page, 0);
    }
}

// A rotation that comes when a page has just been read, and the waiting thread has not run
// yet.
TEST_P(Threads, RotateWhatOthersWaitFor) {
    rig::options o;
    o.frames   = GetParam();
    o.dk       = 2;
    o.kv_heads = 1;
    o.n_cells  = 128;
    rig::pager p(o);
    const std::vector<uint16_t> row{0x3c00, 0x4000};
    std::vector<uint32_t> turns(8, 0);
    for (uint32_t page = 0; page < 8; page++) {
        const uint32_t cell = page * 16;
        ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, row.data(), nullptr));
    }
    const kvp_plane turn{0, 1, {0, -1, 1, 0}};
    const uint64_t first = 1;
    std::atomic<int> running{3};
    rig::in_threads(4, [&](uint32_t t) {
        for (uint32_t i = 0; t == 0 && running.load() > 0; i++) {
            ASSERT_EQ(0, kvp_rotate(p, 0, i % 8, &first, &turn, 1));
            turns[i % 8]++;
            std::this_thread::yield();
        }
        for (uint32_t i = 0; t > 0 && i < 500; i++) {
            kvp_page at;
            const uint32_t page = (i * t + t) % 8;
            ASSERT_EQ(0, kvp_pin(p, 0, page, &at));
            kvp_unpin(p, 0, page, 0);
        }
        running -= t > 0;
    });
    const uint16_t expected[4][2] = {{0x3c00, 0x4000}, {0xc000, 0x3c00}, {0xbc00, 0xc000}, {0x4000, 0xbc00}};
    for (uint32_t page = 0; page < 8; page++) {
        kvp_page at;
        ASSERT_EQ(0, kvp_pin(p, 0, page, &at));
        EXPECT_EQ(0, memcmp(at.k, expected[turns[page] % 4], 4)) << page << " after " << turns[page];
        kvp_unpin(p, 0, page, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Budgets, Threads, testing::Values(1u, 2u, 3u, 7u));

}  // namespace
