// What comes back from a disk as something else than was written is an error, never rows.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rig.h"

namespace {

// Pages of 384 KiB, K 128 and V 256, so that there are several checksums to a page.
rig::options large_pages(rig::faults & f) {
    rig::options o;
    o.page_cells = 1024;
    o.n_cells    = 1024 * 4;
    o.frames     = 1;
    o.fault      = &f;
    return o;
}

// The spill file of the only pager there is, opened anew: it has no name.
int open_spill() {
    int found = -1;
    DIR * fds = opendir("/proc/self/fd");
    while (const dirent * d = readdir(fds)) {
        const std::string link = std::string("/proc/self/fd/") + d->d_name;
        char name[512];
        const ssize_t n = readlink(link.c_str(), name, sizeof name - 1);
        const std::string target(name, n > 0 ? size_t(n) : 0);
        if (target.find("/#") != std::string::npos && target.find("(deleted)") != std::string::npos) {
            EXPECT_EQ(-1, found) << "two unnamed files";
            found = open(link.c_str(), O_RDWR | O_CLOEXEC);
        }
    }
    closedir(fds);
    EXPECT_LE(0, found);
    return found;
}

void flip(int fd, uint64_t at, int bit = 0) {
    uint8_t byte = 0;
    ASSERT_EQ(1, pread(fd, &byte, 1, off_t(at)));
    byte = uint8_t(byte ^ 1u << bit);
    ASSERT_EQ(1, pwrite(fd, &byte, 1, off_t(at)));
}

// No way to a damaged page gives rows, and the sentence says which page and where.
void expect_refused(rig::pager & p, uint32_t page, const char * where) {
    EXPECT_EQ(-EIO, p.scan(0, {page}, [](uint32_t, const kvp_page &) { ADD_FAILURE() << "a damaged page was given out"; }));
    const char * message = nullptr;
    EXPECT_EQ(-EIO, kvp_pager_error(p, &message));
    ASSERT_NE(nullptr, message);
    for (const std::string & part : {"page " + std::to_string(page) + " of layer 0", std::string(where), std::string("not what was written there")}) {
        EXPECT_NE(nullptr, strstr(message, part.c_str())) << message;
    }
    EXPECT_EQ(-EIO, p.check(0, page, 0));
    const uint32_t cell = page * p.opt().page_cells;
    std::vector<uint8_t> row(p.row_k());
    EXPECT_EQ(-EIO, kvp_rows_read(p, 0, &cell, 1, row.data(), nullptr));
}

// Page 1 is in the spill file, and page 2 in the frame. Says where page 1 is.
uint64_t spill_page_1(rig::pager & p, rig::faults & f) {
    EXPECT_EQ(0, p.fill(0, 0, 1));
    EXPECT_EQ(0, p.fill(0, 1, 2));
    EXPECT_EQ(0, p.fill(0, 2, 3));
    return f.written_at;
}

}  // namespace

TEST(Damage, OfOneBitAnywhereInASlotIsSeen) {
    const uint64_t K = 128 * 1024, ALL = 3 * K;
    for (uint64_t at : {uint64_t(0), uint64_t(1), uint64_t(65535), uint64_t(65536), K - 1, K, K + 4096, 2 * K + 77, ALL - 1}) {
        for (int direct : {0, 1}) {
            SCOPED_TRACE("byte " + std::to_string(at) + " direct " + std::to_string(direct));
            rig::faults f;
            rig::options o = large_pages(f);
            o.direct = direct;
            rig::pager p(o);
            ASSERT_EQ(ALL, kvp_layer_page_bytes(p, 0));
            const uint64_t slot = spill_page_1(p, f);
            const int fd = open_spill();
            flip(fd, slot + at, int(at % 8));
            expect_refused(p, 1, rig::disk());
            close(fd);
        }
    }
}

TEST(Damage, ThatIsMendedWasNone) {
    rig::faults f;
    rig::pager p(large_pages(f));
    const uint64_t slot = spill_page_1(p, f);
    const int fd = open_spill();
    flip(fd, slot + 5);
    flip(fd, slot + 5);
    EXPECT_EQ(1, p.check(0, 1, 2)) << kvp_last_error();
    close(fd);
}

TEST(Damage, ByTruncationAndGrowthIsSeen) {
    rig::faults f;
    rig::pager p(large_pages(f));
    spill_page_1(p, f);
    const int fd = open_spill();
    struct stat st;
    ASSERT_EQ(0, fstat(fd, &st));
    ASSERT_EQ(0, ftruncate(fd, 0));
    ASSERT_EQ(0, ftruncate(fd, st.st_size));
    expect_refused(p, 1, rig::disk());
    close(fd);
}

TEST(Damage, ByAnOlderPageInTheSameSlotIsSeen) {
    // A write that never reached the disk, though it was said to have.
    rig::faults f;
    rig::pager p(large_pages(f));
    const uint64_t slot = spill_page_1(p, f);
    const int fd = open_spill();
    std::vector<uint8_t> older(kvp_layer_page_bytes(p, 0));
    ASSERT_EQ(ssize_t(older.size()), pread(fd, older.data(), older.size(), off_t(slot)));
    ASSERT_EQ(0, p.fill(0, 1, 9));
    ASSERT_EQ(0, p.fill(0, 2, 3));
    ASSERT_EQ(slot, f.written_at.load()) << "the slot of a page stays its own";
    ASSERT_EQ(ssize_t(older.size()), pwrite(fd, older.data(), older.size(), off_t(slot)));
    expect_refused(p, 1, rig::disk());
    close(fd);
}

TEST(Damage, IsSeenInWhatAPartialWriteRenewedAndInTheRest) {
    const uint64_t K = 128 * 1024;
    for (uint64_t at : {uint64_t(0), 700 * uint64_t(128), K - 1, K + 700 * 256 + 255, 3 * K - 1}) {
        SCOPED_TRACE(at);
        rig::faults f;
        rig::pager p(large_pages(f));
        const uint64_t slot = spill_page_1(p, f);
        const uint32_t cell = 1024 + 700;
        const std::vector<uint8_t> row(256, 7);
        ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, row.data(), row.data()));
        ASSERT_EQ(1, p.check(0, 2, 3)) << kvp_last_error();
        const int fd = open_spill();
        flip(fd, slot + at);
        expect_refused(p, 1, rig::disk());
        close(fd);
    }
}

namespace {

// A file with the rows of a page, all one byte, K from 100 and V from 200000 on.
int rows_file(const rig::pager & p, int byte) {
    std::string name = std::string(rig::disk()) + "/kvp_damage_XXXXXX";
    const int fd = mkstemp(&name[0]);
    unlink(name.c_str());
    const std::vector<uint8_t> k(1024 * p.row_k(), uint8_t(byte)), v(1024 * p.row_v(), uint8_t(byte));
    EXPECT_EQ(ssize_t(k.size()), pwrite(fd, k.data(), k.size(), 100));
    EXPECT_EQ(ssize_t(v.size()), pwrite(fd, v.data(), v.size(), 200000));
    return fd;
}

int back_with(const rig::pager & p, int fd) {
    const kvp_extent x[] = {
        {fd, 0, 300, 100, 200000},
        {fd, 300, 724, 100 + 300 * p.row_k(), 200000 + 300 * p.row_v()},
    };
    return kvp_back(p, 0, 1, x, 2);
}

// What the pager has of the page when it is told of the file.
enum class before { nothing, frame, slot };

void expect_seen_in_file(before has, uint64_t at, bool seen) {
    SCOPED_TRACE("byte " + std::to_string(at) + " with page in " + std::to_string(int(has)));
    rig::faults f;
    rig::pager p(large_pages(f));
    const int fd = rows_file(p, 2);
    if (has != before::nothing) {
        ASSERT_EQ(0, p.fill(0, 1, 2));
    }
    if (has == before::slot) {
        ASSERT_EQ(0, p.fill(0, 2, 3));
    }
    ASSERT_EQ(0, back_with(p, fd)) << kvp_last_error();
    ASSERT_EQ(0, p.fill(0, 2, 3)) << "the page leaves its frame";
    flip(fd, at);
    if (seen) {
        expect_refused(p, 1, "restored from");
    } else {
        EXPECT_EQ(1, p.check(0, 1, 2)) << kvp_last_error();
    }
    close(fd);
}

}  // namespace

TEST(Damage, OfAFileThatBacksAPageIsSeen) {
    const uint64_t K_END = 100 + 1024 * 128, V_END = 200000 + 1024 * 256;
    for (before has : {before::nothing, before::frame, before::slot}) {
        for (uint64_t at : {uint64_t(100), uint64_t(100 + 300 * 128), K_END - 1, uint64_t(200000), V_END - 1}) {
            expect_seen_in_file(has, at, true);
        }
        for (uint64_t at : {uint64_t(99), K_END, uint64_t(199999)}) {
            expect_seen_in_file(has, at, false);
        }
    }
}

TEST(Damage, OfAFileBeforeItBacksAPageInMemoryIsSeen) {
    rig::faults f;
    rig::pager p(large_pages(f));
    ASSERT_EQ(0, p.fill(0, 1, 2));
    const int fd = rows_file(p, 2);
    flip(fd, 5000);
    ASSERT_EQ(0, back_with(p, fd)) << kvp_last_error();
    EXPECT_EQ(1, p.check(0, 1, 2)) << "in its frame it is what it was";
    ASSERT_EQ(0, p.fill(0, 2, 3));
    expect_refused(p, 1, "restored from");
    close(fd);
}
