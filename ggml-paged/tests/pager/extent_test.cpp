// Pages whose contents are in files of others.
#include <fcntl.h>
#include <unistd.h>

#include "rig.h"

namespace {

// An unnamed file with every byte set to its number / 4096 (+1).
int numbered_file(size_t bytes) {
    std::string name = std::string(rig::disk()) + "/kvp_extent_XXXXXX";
    const int fd = mkstemp(&name[0]);
    unlink(name.c_str());
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = uint8_t(i / 4096 + 1);
    }
    EXPECT_EQ(ssize_t(bytes), pwrite(fd, data.data(), bytes, 0));
    return fd;
}

size_t open_descriptors() {
    size_t n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

}  // namespace

TEST(Extents, EvictWithoutWritingAndFallBackToTheSpill) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    const int fd = numbered_file(65536);
    // K of all rows from page 3 of the file, V half from page 5, half from page 8.
    const kvp_extent x[] = {{fd, 0, 8, 3 * 4096, 5 * 4096}, {fd, 8, 8, 3 * 4096 + 2048, 8 * 4096}};
    ASSERT_EQ(0, kvp_back(p, 0, 4, x, 2)) << kvp_last_error();
    close(fd);  // the pager has its own
    const uint64_t looked_at = p.stats().extent_bytes;
    EXPECT_EQ(16 * (p.row_k() + p.row_v()), looked_at) << "what is read later is compared with this";
    for (int i = 0; i < 3; i++) {
        kvp_page at;
        ASSERT_EQ(0, kvp_pin(p, 0, 4, &at)) << kvp_last_error();
        EXPECT_EQ(4, at.k[0]);
        EXPECT_EQ(6, at.v[0]);
        EXPECT_EQ(9, at.v[8 * p.row_v()]);
        kvp_unpin(p, 0, 4, 0);
        EXPECT_EQ(1, p.check(0, 5, 0));
    }
    EXPECT_EQ(0u, p.stats().writes);
    EXPECT_EQ(3 * 16 * (p.row_k() + p.row_v()), p.stats().extent_bytes - looked_at);
    const uint32_t cell = 4 * 16;
    const std::vector<uint8_t> row(p.row_k(), 77);
    ASSERT_EQ(0, kvp_rows_write(p, 0, &cell, 1, row.data(), nullptr));
    EXPECT_EQ(1, p.check(0, 5, 0));
    EXPECT_EQ(1u, p.stats().writes);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 4, &at));
    EXPECT_EQ(77, at.k[0]);
    EXPECT_EQ(4, at.k[p.row_k()]);
    EXPECT_EQ(6, at.v[0]);
    kvp_unpin(p, 0, 4, 0);
}

TEST(Extents, OfPartOfAPageLeaveZerosAfter) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    ASSERT_EQ(0, p.fill(0, 0, 0xee));  // the frame's former content
    const int fd = numbered_file(16384);
    const kvp_extent x{fd, 0, 3, 1, 4097};
    ASSERT_EQ(0, kvp_back(p, 0, 4, &x, 1)) << kvp_last_error();
    close(fd);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 4, &at)) << kvp_last_error();
    for (size_t i = 0; i < 16 * p.row_k(); i++) {
        ASSERT_EQ(i < 3 * p.row_k() ? 1 : 0, at.k[i]);
    }
    for (size_t i = 0; i < 16 * p.row_v(); i++) {
        ASSERT_EQ(i < 3 * p.row_v() ? 2 : 0, at.v[i]);
    }
    kvp_unpin(p, 0, 4, 0);
}

// A page may have rows of others after those that were restored to it. They are in no file.
TEST(Extents, LeaveRowsAfterThemAlone) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    const int fd = numbered_file(16384);
    const kvp_extent x{fd, 0, 3, 0, 4096}, whole[] = {{fd, 0, 3, 0, 0}, {fd, 3, 13, 0, 0}};
    std::vector<uint8_t> row(p.row_k(), 77);
    const uint32_t other = 4 * 16 + 3, restored[] = {4 * 16, 4 * 16 + 1, 4 * 16 + 2};
    const auto expect_row = [&](int k) {
        EXPECT_EQ(1, p.check(0, 5, 0)) << "the page leaves its frame";
        ASSERT_EQ(0, kvp_rows_read(p, 0, &other, 1, row.data(), nullptr)) << kvp_last_error();
        EXPECT_EQ(k, row[0]);
    };
    ASSERT_EQ(0, kvp_rows_write(p, 0, &other, 1, row.data(), nullptr));
    const std::vector<uint8_t> rows(3 * (p.row_k() + p.row_v()), 1);
    ASSERT_EQ(0, kvp_rows_write(p, 0, restored, 3, rows.data(), rows.data()));
    EXPECT_EQ(-EBUSY, kvp_back(p, 0, 4, &x, 1));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "first 3 rows")) << kvp_last_error();
    expect_row(77);
    EXPECT_EQ(-EBUSY, kvp_back(p, 0, 4, &x, 1)) << "in the spill they are as well";
    expect_row(77);

    // The whole page, or a page without writes since it was dropped.
    const std::vector<uint8_t> page(16 * (p.row_k() + p.row_v()), 1);
    std::vector<uint32_t> all;
    for (uint32_t cell = 4 * 16; cell < 5 * 16; cell++) {
        all.push_back(cell);
    }
    ASSERT_EQ(0, kvp_rows_write(p, 0, all.data(), 16, page.data(), page.data()));
    EXPECT_EQ(0, kvp_back(p, 0, 4, whole, 2)) << kvp_last_error();
    EXPECT_EQ(-EBUSY, kvp_back(p, 0, 4, whole, 1)) << "rows that only a file has are rows";
    expect_row(1);
    kvp_drop(p, 0, 4);
    EXPECT_EQ(0, kvp_back(p, 0, 4, &x, 1)) << kvp_last_error();
    expect_row(0);
    close(fd);
}

// The mutex is released while a file is read. Rows that another thread writes then stay.
TEST(Extents, LeaveRowsThatAreWrittenMeanwhileAlone) {
    rig::faults f;
    rig::options o;
    o.frames = 1;
    o.fault  = &f;
    rig::pager p(o);
    const int fd = numbered_file(16384);
    const kvp_extent x{fd, 0, 3, 0, 4096};
    const uint32_t other = 4 * 16 + 3;
    std::vector<uint8_t> row(p.row_k(), 77);
    f.meanwhile = [&](long n) {
        if (n == 0) {
            EXPECT_EQ(0, kvp_rows_write(p, 0, &other, 1, row.data(), nullptr));
        }
    };
    EXPECT_EQ(-EBUSY, kvp_back(p, 0, 4, &x, 1));
    EXPECT_EQ(1, p.check(0, 5, 0));
    row.assign(row.size(), 0);
    ASSERT_EQ(0, kvp_rows_read(p, 0, &other, 1, row.data(), nullptr)) << kvp_last_error();
    EXPECT_EQ(77, row[0]);
    close(fd);
}

TEST(Extents, AfterADropOrAReadOfNothingAreRead) {
    rig::options o;
    rig::pager p(o);
    const int fd = numbered_file(16384);
    const kvp_extent x{fd, 0, 16, 0, 4096};
    ASSERT_EQ(1, p.check(0, 4, 0));  // in a frame now, as zeros
    ASSERT_EQ(0, kvp_back(p, 0, 4, &x, 1));
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 4, &at));
    EXPECT_EQ(1, at.k[0]);

    // Dropped while it is held, and backed again: the new contents are those of the file.
    memset(at.k, 9, 64);
    kvp_drop(p, 0, 4);
    std::thread other([&] { EXPECT_EQ(0, kvp_back(p, 0, 4, &x, 1)); });
    kvp_unpin(p, 0, 4, 1);
    other.join();
    ASSERT_EQ(0, kvp_pin(p, 0, 4, &at));
    EXPECT_EQ(1, at.k[0]);
    kvp_unpin(p, 0, 4, 0);
    close(fd);
}

TEST(Extents, AreChecked) {
    rig::options o;
    rig::pager p(o);
    const int fd = numbered_file(16384);
    const auto bad = [&](std::vector<kvp_extent> list, int err, const char * word) {
        EXPECT_EQ(err, kvp_back(p, 0, 1, list.data(), uint32_t(list.size()))) << word;
        EXPECT_NE(nullptr, strstr(kvp_last_error(), word)) << kvp_last_error();
    };
    bad({}, -EINVAL, "no file");
    bad({{fd, 1, 4, 0, 0}}, -EINVAL, "none");
    bad({{fd, 0, 4, 0, 0}, {fd, 5, 1, 0, 0}}, -EINVAL, "none");
    bad({{fd, 0, 4, 0, 0}, {fd, 3, 1, 0, 0}}, -EINVAL, "twice");
    bad({{fd, 0, 17, 0, 0}}, -EINVAL, "16");
    bad({{fd, 0, 0, 0, 0}}, -EINVAL, "rows");
    bad({{fd, 8, UINT32_MAX, 0, 0}}, -EINVAL, "rows");
    bad({{fd, 0, 16, 16384 - 16 * p.row_k() + 1, 0}}, -EINVAL, "beyond");
    bad({{fd, 0, 16, 0, UINT64_MAX - 10}}, -EINVAL, "beyond");
    bad({{-1, 0, 16, 0, 0}}, -EBADF, "extent 0");
    int pipes[2];
    ASSERT_EQ(0, pipe(pipes));
    bad({{pipes[0], 0, 1, 0, 0}}, -EINVAL, "regular");
    close(pipes[0]);
    close(pipes[1]);
    close(fd);
    EXPECT_EQ(1, p.check(0, 1, 0)) << "a refusal changes nothing";
}

TEST(Extents, OfOneFileShareADescriptor) {
    rig::options o;
    o.n_cells = 16 * 64;
    o.frames  = 2;
    const size_t before = open_descriptors();
    {
        rig::pager p(o);
        const int fd = numbered_file(16384);
        for (uint32_t page = 0; page < 64; page++) {
            const int again = dup(fd);
            const kvp_extent x{again, 0, 16, page, page};
            ASSERT_EQ(0, kvp_back(p, 0, page, &x, 1));
            close(again);
        }
        close(fd);
        EXPECT_LE(open_descriptors(), before + 3) << "the spill file and at most two of the extents' file";
        for (uint32_t page = 0; page < 64; page++) {
            kvp_drop(p, 0, page);
        }
        EXPECT_EQ(before + 1, open_descriptors());
    }
    EXPECT_EQ(before, open_descriptors());
}
