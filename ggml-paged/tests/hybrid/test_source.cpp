// The pager's table as a source of pages: the right layer, and never dirty.
#include <gtest/gtest.h>

#include <cerrno>

#include "hybrid/hybrid.h"

namespace {

struct call {
    kvp_pager * pager;
    uint32_t    layer, page;
    int         dirty;
};
call last;

}  // namespace

TEST(Source, CallsThePagerThroughItsTable) {
    kvp_iface table{};
    table.pin = [](kvp_pager * p, uint32_t layer, uint32_t page, kvp_page * out) {
        last = {p, layer, page, -1};
        out->generation = 42;
        return page == 13 ? -EIO : 0;
    };
    table.unpin = [](kvp_pager * p, uint32_t layer, uint32_t page, int dirty) { last = {p, layer, page, dirty}; };
    table.prefetch = [](kvp_pager * p, uint32_t layer, const uint32_t * pages, uint32_t n) { last = {p, layer, pages[n - 1], -2}; };
    int                  pager = 0;
    kvp::iface_layer     layer = {&table, reinterpret_cast<kvp_pager *>(&pager), 5};
    const kvp::page_source s   = kvp::source_of(&layer);

    kvp_page page{};
    EXPECT_EQ(s.pin(s.ctx, 7, &page), 0);
    EXPECT_EQ(page.generation, 42u);
    EXPECT_EQ(last.pager, layer.pager);
    EXPECT_EQ(last.layer, 5u);
    EXPECT_EQ(last.page, 7u);
    EXPECT_EQ(s.pin(s.ctx, 13, &page), -EIO);
    s.unpin(s.ctx, 9);
    EXPECT_EQ(last.layer, 5u);
    EXPECT_EQ(last.page, 9u);
    EXPECT_EQ(last.dirty, 0);
    const uint32_t pages[2] = {3, 4};
    s.prefetch(s.ctx, pages, 2);
    EXPECT_EQ(last.page, 4u);
    EXPECT_EQ(last.dirty, -2);
}
