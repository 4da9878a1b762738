// A copy of a page is good as long as the version is that from before the copy was made.
#include <unistd.h>

#include <map>

#include "rig.h"

namespace {

std::vector<uint64_t> versions(const rig::pager & p) {
    std::vector<uint64_t> all;
    for (uint32_t layer = 0; layer < p.opt().layers; layer++) {
        for (uint32_t page = 0; page < p.pages(); page++) {
            all.push_back(kvp_page_version(p, layer, page));
        }
    }
    return all;
}

// By how much versions have grown since, of those that have.
std::map<uint32_t, uint64_t> grown(const rig::pager & p, const std::vector<uint64_t> & before) {
    std::map<uint32_t, uint64_t> by;
    const std::vector<uint64_t> now = versions(p);
    for (uint32_t i = 0; i < now.size(); i++) {
        if (now[i] != before[i]) {
            by[i] = now[i] - before[i];
        }
    }
    return by;
}

using changes = std::map<uint32_t, uint64_t>;

}  // namespace

TEST(Version, GrowsWithEveryChange) {
    rig::options o;
    o.layers = 2;
    rig::pager p(o);
    const uint32_t second = p.pages();
    auto before = versions(p);
    ASSERT_EQ(0, p.fill(0, 3, 5));
    EXPECT_EQ(grown(p, before), (changes{{3, 1}}));

    before = versions(p);
    std::vector<uint8_t> k(6 * p.row_k());
    const uint32_t cells[] = {16, 17, 32, 18, 40, 41};
    ASSERT_EQ(0, kvp_rows_write(p, 1, cells, 6, k.data(), nullptr));
    EXPECT_EQ(grown(p, before), (changes{{second + 1, 2}, {second + 2, 2}})) << "one for each run of cells of a page";

    before = versions(p);
    const uint64_t bits = 1;
    const kvp_plane plane = {0, 1, {0, 1, -1, 0}};
    ASSERT_EQ(0, kvp_rotate(p, 0, 3, &bits, &plane, 1));
    EXPECT_EQ(grown(p, before), (changes{{3, 1}}));

    before = versions(p);
    kvp_drop(p, 0, 3);
    EXPECT_EQ(grown(p, before), (changes{{3, 1}, {second + 3, 1}}));

    before = versions(p);
    std::string name = std::string(rig::disk()) + "/kvp_version_XXXXXX";
    const int fd = mkstemp(&name[0]);
    unlink(name.c_str());
    ASSERT_EQ(0, ftruncate(fd, 65536));
    const kvp_extent x = {fd, 0, 16, 0, 8192};
    ASSERT_EQ(0, kvp_back(p, 0, 7, &x, 1)) << kvp_last_error();
    close(fd);
    EXPECT_EQ(grown(p, before), (changes{{7, 1}}));
}

TEST(Version, StaysWhenThePageMovesOrIsRead) {
    rig::options o;
    o.frames = 2;
    rig::pager p(o);
    for (uint32_t page = 0; page < p.pages(); page++) {
        ASSERT_EQ(0, p.fill(0, page, int(page + 1)));
    }
    const uint64_t bits = 2;
    const kvp_plane plane = {0, 1, {0, 1, -1, 0}};
    ASSERT_EQ(0, kvp_rotate(p, 0, 1, &bits, &plane, 1));
    const auto before = versions(p);
    for (int round = 0; round < 3; round++) {
        ASSERT_EQ(0, p.scan(0, p.all_pages()));
        std::vector<uint8_t> k(p.row_k());
        const uint32_t cell = 77;
        ASSERT_EQ(0, kvp_rows_read(p, 0, &cell, 1, k.data(), nullptr));
    }
    EXPECT_GT(p.stats().evictions, 0u);
    EXPECT_EQ(p.stats().rotations, 1u) << "it was announced when it was asked for";
    EXPECT_EQ(grown(p, before), changes());
}

TEST(Version, IsNobodyElses) {
    rig::options o;
    rig::pager first(o), second(o);
    EXPECT_EQ(0u, kvp_page_version(first, 1, 0));
    EXPECT_EQ(0u, kvp_page_version(first, 0, first.pages()));
    EXPECT_NE(0u, kvp_page_version(first, 0, 0));
    for (int i = 0; i < 50; i++) {
        ASSERT_EQ(0, first.fill(0, 0, i));
        EXPECT_NE(kvp_page_version(first, 0, 0), kvp_page_version(second, 0, 0));
    }
}

// Who copies a page while it is written to may have any of both: nothing that was asked for
// before the writer was done stands afterwards.
TEST(Version, OfAPageBeingWrittenToDoesNotStand) {
    rig::options o;
    rig::pager p(o);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 0, &at));
    memset(at.k, 9, p.row_k());
    const uint64_t meanwhile = kvp_page_version(p, 0, 0);
    ASSERT_EQ(0, p.check(0, 0, 0));
    kvp_unpin_rows(p, 0, 0, 0, 1);
    EXPECT_NE(kvp_page_version(p, 0, 0), meanwhile);

    ASSERT_EQ(0, kvp_pin(p, 0, 0, &at));
    kvp_drop(p, 0, 0);
    const uint64_t dropped = kvp_page_version(p, 0, 0);
    kvp_unpin(p, 0, 0, 1);  // too late: the written rows are dropped
    EXPECT_EQ(kvp_page_version(p, 0, 0), dropped);
    EXPECT_EQ(1, p.check(0, 0, 0));
}
