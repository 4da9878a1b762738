// Scans visit every page once per part or consumer, with any budget.
#include <algorithm>
#include <random>

#include "rig.h"

namespace {

void unordered(rig::pager & p, uint32_t layer, const std::vector<uint32_t> & list, uint32_t parts, uint32_t claimers) {
    kvp_scan * s = nullptr;
    ASSERT_EQ(0, kvp_scan_begin(p, layer, list.data(), uint32_t(list.size()), 0, parts, &s)) << kvp_last_error();
    std::vector<std::atomic<uint32_t>> visits(list.size() * parts);
    rig::in_threads(claimers, [&](uint32_t) {
        uint32_t index, part;
        kvp_page at;
        int rc;
        while ((rc = kvp_scan_claim(s, &index, &part, &at)) == 1) {
            EXPECT_TRUE(p.holds(at, int(list[index] + 1 + layer)));
            visits[index * parts + part]++;
            kvp_scan_release(s, index);
        }
        EXPECT_EQ(0, rc) << kvp_last_error();
    });
    kvp_scan_end(s);
    for (auto & v : visits) {
        EXPECT_EQ(1u, v.load());
    }
}

void ordered(rig::pager & p, uint32_t layer, const std::vector<uint32_t> & list, uint32_t consumers) {
    kvp_scan * s = nullptr;
    ASSERT_EQ(0, kvp_scan_begin(p, layer, list.data(), uint32_t(list.size()), consumers, 0, &s)) << kvp_last_error();
    rig::in_threads(consumers, [&](uint32_t) {
        for (uint32_t i = 0; i < list.size(); i++) {
            kvp_page at;
            ASSERT_EQ(0, kvp_scan_wait(s, i, &at)) << kvp_last_error();
            EXPECT_TRUE(p.holds(at, int(list[i] + 1 + layer)));
            kvp_scan_release(s, i);
        }
    });
    kvp_scan_end(s);
}

void fill_all(rig::pager & p) {
    for (uint32_t l = 0; l < p.opt().layers; l++) {
        for (uint32_t page = 0; page < p.pages(); page++) {
            ASSERT_EQ(0, p.fill(l, page, int(page + 1 + l))) << kvp_last_error();
        }
    }
}

}  // namespace

TEST(Scan, OneFrameServesFourConsumers) {
    for (uint32_t frames : {1u, 2u, 3u, 40u}) {
        rig::options o;
        o.frames = frames;
        o.layers = 2;
        rig::pager p(o);
        fill_all(p);
        std::vector<uint32_t> list = p.all_pages();
        for (int repeat = 0; repeat < 5; repeat++) {
            ordered(p, uint32_t(repeat % 2), list, 4);
            unordered(p, uint32_t(repeat % 2), list, 1, 4);
            unordered(p, uint32_t(repeat % 2), list, 3, 4);
            std::shuffle(list.begin(), list.end(), std::mt19937(uint32_t(repeat)));
        }
    }
}

TEST(Scan, OrderedReadsEachPageOnceForAllConsumers) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    fill_all(p);
    const uint64_t before = p.stats().reads;
    ordered(p, 0, p.all_pages(), 4);
    EXPECT_LE(p.stats().reads - before, 16u) << "the last consumer lets a page go, not the first";
}

TEST(Scan, SeveralAtATimeShareOneFrame) {
    rig::options o;
    o.frames = 1;
    o.layers = 3;
    rig::pager p(o);
    fill_all(p);
    rig::in_threads(3, [&](uint32_t t) {
        for (int repeat = 0; repeat < 4; repeat++) {
            if (t == 2) {
                ordered(p, 1, p.all_pages(), 2);
                ASSERT_EQ(1, p.check(2, 5, 8));
            } else {
                unordered(p, t, p.all_pages(), 2, 2);
            }
        }
    });
    EXPECT_EQ(0, kvp_pager_error(p, nullptr));
}

TEST(Scan, PagesReadAheadDoNotKeepOthersOut) {
    // The thread that scans also pins other pages between claims, with one frame for all.
    rig::options o;
    o.frames = 1;
    o.layers = 2;
    rig::pager p(o);
    fill_all(p);
    const auto list = p.all_pages();
    kvp_scan * s = nullptr;
    ASSERT_EQ(0, kvp_scan_begin(p, 0, list.data(), 16, 0, 2, &s));
    uint32_t index, part, claims = 0;
    kvp_page at;
    while (kvp_scan_claim(s, &index, &part, &at) == 1) {
        EXPECT_TRUE(p.holds(at, int(index + 1)));
        kvp_scan_release(s, index);
        ASSERT_EQ(1, p.check(1, claims % 16, int(claims % 16 + 2)));
        claims++;
    }
    kvp_scan_end(s);
    EXPECT_EQ(32u, claims);
}

TEST(Scan, CanEndBeforeItIsThrough) {
    rig::options o;
    o.frames = 2;
    rig::pager p(o);
    fill_all(p);
    const auto list = p.all_pages();
    for (int repeat = 0; repeat < 20; repeat++) {
        kvp_scan * s = nullptr;
        ASSERT_EQ(0, kvp_scan_begin(p, 0, list.data(), 16, repeat % 2, 2, &s));
        uint32_t index = 0, part;
        kvp_page at;
        if (repeat % 4 > 1) {
            ASSERT_EQ(repeat % 2 ? 0 : 1, repeat % 2 ? kvp_scan_wait(s, 0, &at) : kvp_scan_claim(s, &index, &part, &at));
            kvp_scan_release(s, index);
        }
        kvp_scan_end(s);
    }
    unordered(p, 0, list, 1, 2);
}

TEST(Scan, ListsAreChecked) {
    rig::options o;
    rig::pager p(o);
    kvp_scan * s = nullptr;
    const uint32_t twice[] = {3, 1, 3}, beyond[] = {16};
    EXPECT_EQ(-EINVAL, kvp_scan_begin(p, 0, twice, 3, 0, 1, &s));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "twice"));
    EXPECT_EQ(-EINVAL, kvp_scan_begin(p, 0, beyond, 1, 0, 1, &s));
    EXPECT_EQ(-EINVAL, kvp_scan_begin(p, 7, beyond, 0, 0, 1, &s));
    EXPECT_EQ(-EINVAL, kvp_scan_begin(p, 0, beyond, 0, 0, 0, &s));
    EXPECT_EQ(nullptr, s);
    EXPECT_EQ(0, p.scan(0, {})) << "an empty scan ends at once";
}
