// Every transfer fails once: never a hang, never wrong bytes, and the error stays.
#include <unistd.h>

#include "rig.h"

namespace {

// Writes, reads and scans with several threads until it is through or an error comes up.
// Wrong bytes are a failure in any case.
void work(rig::pager & p) {
    const auto good = [](int rc) { return rc >= 0; };
    for (uint32_t page = 0; page < p.pages(); page++) {
        if (!good(p.fill(0, page, int(page + 1)))) {
            return;
        }
    }
    rig::in_threads(3, [&](uint32_t t) {
        for (uint32_t i = 0; i < 2; i++) {
            int rc = 0;
            if (t < 2) {
                rc = p.scan(0, p.all_pages(), [&](uint32_t page, const kvp_page & at) {
                    EXPECT_TRUE(p.holds(at, int(page + 1)));
                });
            } else {
                for (uint32_t page = 0; page < p.pages() && good(rc); page++) {
                    rc = p.check(0, page, int(page + 1));
                    EXPECT_NE(0, rc) << "page " << page << " has other bytes";
                }
            }
            if (!good(rc)) {
                EXPECT_NE(0, kvp_pager_error(p, nullptr));
                return;
            }
        }
    });
}

void ordered(rig::pager & p) {
    const auto list = p.all_pages();
    kvp_scan * s = nullptr;
    if (kvp_scan_begin(p, 0, list.data(), uint32_t(list.size()), 3, 0, &s) != 0) {
        return;
    }
    rig::in_threads(3, [&](uint32_t) {
        for (uint32_t i = 0; i < list.size(); i++) {
            kvp_page at;
            if (kvp_scan_wait(s, i, &at) != 0) {
                return;
            }
            EXPECT_TRUE(p.holds(at, int(i + 1)));
            kvp_scan_release(s, i);
        }
    });
    kvp_scan_end(s);
}

class Faults : public testing::TestWithParam<uint32_t> {};

TEST_P(Faults, AtEachTransfer) {
    rig::options o;
    o.frames  = GetParam();
    o.n_cells = 16 * 6;
    uint32_t failed = 0;
    for (long at = 0; at < 60 && !testing::Test::HasFailure(); at++) {
        rig::faults f;
        f.fail_at = at;
        f.error   = at % 2 ? -EIO : -ENOSPC;
        o.fault = &f;
        SCOPED_TRACE("transfer " + std::to_string(at));
        rig::pager p(o);
        work(p);
        ordered(p);
        const bool hit = f.count.load() > at;
        failed += hit;
        const char * message = nullptr;
        EXPECT_EQ(hit ? f.error.load() : 0, kvp_pager_error(p, &message));
        if (hit) {
            EXPECT_NE(nullptr, strstr(message, "page")) << message;
            kvp_page page;
            kvp_scan * s = nullptr;
            const uint32_t zero = 0;
            EXPECT_EQ(f.error.load(), kvp_pin(p, 0, 0, &page));
            EXPECT_EQ(f.error.load(), kvp_scan_begin(p, 0, &zero, 1, 0, 1, &s));
            EXPECT_EQ(f.error.load(), kvp_rows_read(p, 0, &zero, 1, nullptr, nullptr));
            kvp_drop(p, 0, 1);
            EXPECT_STREQ(message, kvp_last_error());
        }
    }
    EXPECT_GT(failed, 10u) << "transfers must have been there to fail";
}

INSTANTIATE_TEST_SUITE_P(Budgets, Faults, testing::Values(1u, 2u, 4u));

TEST(Fault, OfAnExtentNamesTheFile) {
    rig::faults f;
    rig::options o;
    o.fault = &f;
    std::string name = std::string(rig::disk()) + "/kvp_fault_XXXXXX";
    const int fd = mkstemp(&name[0]);
    ASSERT_LE(0, fd);
    unlink(name.c_str());
    ASSERT_EQ(0, ftruncate(fd, 65536));
    for (int truncated : {0, 1}) {
        f.count   = 0;
        f.fail_at = truncated ? -1 : 3;  // the first two are of kvp_back
        ASSERT_EQ(0, ftruncate(fd, 65536));
        rig::pager p(o);
        const kvp_extent x{fd, 0, 16, 100, 30000};
        ASSERT_EQ(0, kvp_back(p, 0, 2, &x, 1)) << kvp_last_error();
        ASSERT_EQ(0, ftruncate(fd, truncated ? 5000 : 65536));
        EXPECT_EQ(-EIO, p.check(0, 2, 0));
        const char * message = nullptr;
        EXPECT_EQ(-EIO, kvp_pager_error(p, &message));
        EXPECT_NE(nullptr, strstr(message, "restored")) << message;
    }
    close(fd);
}

TEST(Fault, OfAFileAboutToBackAPageChangesNothing) {
    rig::faults f;
    rig::options o;
    o.fault = &f;
    std::string name = std::string(rig::disk()) + "/kvp_fault_XXXXXX";
    const int fd = mkstemp(&name[0]);
    ASSERT_LE(0, fd);
    unlink(name.c_str());
    ASSERT_EQ(0, ftruncate(fd, 65536));
    rig::pager p(o);
    for (long at : {0, 1}) {
        f.count   = 0;
        f.fail_at = at;
        const kvp_extent x{fd, 0, 16, 100, 30000};
        EXPECT_EQ(-EIO, kvp_back(p, 0, 2, &x, 1));
        EXPECT_NE(nullptr, strstr(kvp_last_error(), "nothing was changed")) << kvp_last_error();
        EXPECT_EQ(0, kvp_pager_error(p, nullptr));
    }
    EXPECT_EQ(1, p.check(0, 2, 0));
    close(fd);
}

}  // namespace
