// A page of which only a few rows are not in its slot costs the writing of these rows
// only.
#include <algorithm>

#include "rig.h"

namespace {

rig::options large_pages() {
    rig::options o;
    o.page_cells = 1024;
    o.n_cells    = 1024 * 4;
    o.frames     = 1;
    return o;
}

// Writes some rows of page 1 and makes it leave its frame; the bytes that were written.
uint64_t leave_after(rig::pager & p, const std::vector<uint32_t> & cells, int byte) {
    const uint64_t start = p.stats().write_bytes;
    const std::vector<uint8_t> rows(cells.size() * std::max(p.row_k(), p.row_v()), uint8_t(byte));
    EXPECT_EQ(0, kvp_rows_write(p, 0, cells.data(), uint32_t(cells.size()), rows.data(), rows.data())) << kvp_last_error();
    EXPECT_EQ(1, p.check(0, 0, 0)) << kvp_last_error();
    return p.stats().write_bytes - start;
}

void expect_page_1(rig::pager & p, const std::vector<uint32_t> & cells, int others, int byte) {
    std::vector<uint32_t> all(1024);
    for (uint32_t i = 0; i < 1024; i++) {
        all[i] = 1024 + i;
    }
    std::vector<uint8_t> k(1024 * p.row_k()), v(1024 * p.row_v());
    ASSERT_EQ(0, kvp_rows_read(p, 0, all.data(), 1024, k.data(), v.data())) << kvp_last_error();
    for (uint32_t c : all) {
        const bool written  = std::find(cells.begin(), cells.end(), c) != cells.end();
        const auto expected = uint8_t(written ? byte : others);
        const auto same     = [expected](uint8_t x) { return x == expected; };
        const size_t i = c - 1024;
        ASSERT_TRUE(std::all_of(&k[i * p.row_k()], &k[i * p.row_k()] + p.row_k(), same)) << c;
        ASSERT_TRUE(std::all_of(&v[i * p.row_v()], &v[i * p.row_v()] + p.row_v(), same)) << c;
    }
}

}  // namespace

TEST(Partial, WritesGoInWholeDiskBlocksOfKAndV) {
    rig::pager p(large_pages());
    ASSERT_EQ(0, p.fill(0, 1, 5));
    ASSERT_EQ(1, p.check(0, 0, 0));
    struct { std::vector<uint32_t> cells; uint64_t bytes; } cases[] = {
        {{1024}, 2 * 4096},
        {{1024 + 1023}, 2 * 4096},
        {{1024 + 500, 1024 + 40}, (15 + 30) * 4096},
        {{1024 + 31, 1024 + 32}, 4 * 4096},
        {{1024, 1024 + 1023}, 3 * 128 * 1024},
    };
    std::vector<uint32_t> written;
    for (const auto & c : cases) {
        EXPECT_EQ(c.bytes, leave_after(p, c.cells, 6)) << "from cell " << c.cells[0];
        written.insert(written.end(), c.cells.begin(), c.cells.end());
        expect_page_1(p, written, 5, 6);
        ASSERT_EQ(1, p.check(0, 0, 0));
    }
}

TEST(Partial, RangesAddUpUntilThePageLeaves) {
    rig::options o = large_pages();
    rig::pager p(o);
    ASSERT_EQ(0, p.fill(0, 1, 5));
    ASSERT_EQ(1, p.check(0, 0, 0));
    const std::vector<uint32_t> first = {1024 + 900}, second = {1024 + 3};
    const std::vector<uint8_t> row(256, 6);
    ASSERT_EQ(0, kvp_rows_write(p, 0, first.data(), 1, row.data(), row.data()));
    leave_after(p, second, 6);
    expect_page_1(p, {1024 + 900, 1024 + 3}, 5, 6);
}

TEST(Partial, UnpinOfRowsTakesAnyNumbers) {
    rig::pager p(large_pages());
    ASSERT_EQ(0, p.fill(0, 1, 5));
    ASSERT_EQ(1, p.check(0, 0, 0));
    struct { uint32_t first, n; uint64_t bytes; } cases[] = {
        {0, 0, 0}, {1024, 1, 0}, {UINT32_MAX, UINT32_MAX, 0},
        {1023, UINT32_MAX, 2 * 4096}, {0, UINT32_MAX, 3 * 128 * 1024},
    };
    for (const auto & c : cases) {
        const uint64_t start = p.stats().write_bytes;
        kvp_page at;
        ASSERT_EQ(0, kvp_pin(p, 0, 1, &at));
        kvp_unpin_rows(p, 0, 1, c.first, c.n);
        ASSERT_EQ(1, p.check(0, 0, 0)) << kvp_last_error();
        EXPECT_EQ(c.bytes, p.stats().write_bytes - start) << c.first << " " << c.n;
    }
    kvp_unpin_rows(p, 7, 1, 0, 1);
    EXPECT_EQ(1, p.check(0, 1, 5));
}

TEST(Partial, PagesWithoutASlotAreWrittenWhole) {
    rig::pager p(large_pages());
    EXPECT_EQ(3u * 128 * 1024, leave_after(p, {1024 + 7}, 6));
    expect_page_1(p, {1024 + 7}, 0, 6);

    // After a drop the page has no slot any more, and none of its former content.
    kvp_drop(p, 0, 1);
    EXPECT_EQ(3u * 128 * 1024, leave_after(p, {1024 + 8}, 9));
    expect_page_1(p, {1024 + 8}, 0, 9);
}
