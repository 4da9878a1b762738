// Settings that cannot be are refused by name, and the spill file has no name.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <set>

#include "pager/pager.h"
#include "rig.h"

namespace {

kvp_config good() {
    kvp_config c{};
    c.page_cells = 16;
    c.ram_bytes  = 1 << 20;
    return c;
}

void refused(const kvp_config & c, int err, const char * word) {
    kvp_pager * p = nullptr;
    EXPECT_EQ(err, kvp_pager_create(&c, &p)) << word;
    EXPECT_EQ(nullptr, p);
    EXPECT_NE(nullptr, strstr(kvp_last_error(), word)) << kvp_last_error();
    kvp_pager_free(p);
}

std::set<std::string> names(const char * dir) {
    std::set<std::string> out;
    DIR * d = opendir(dir);
    while (const dirent * e = d != nullptr ? readdir(d) : nullptr) {
        out.insert(e->d_name);
    }
    if (d != nullptr) {
        closedir(d);
    }
    return out;
}

}  // namespace

TEST(Config, IsRefusedByName) {
    for (uint32_t cells : {0u, 8u, 17u, 48u, 131072u}) {
        kvp_config c = good();
        c.page_cells = cells;
        refused(c, -EINVAL, "page_cells");
    }
    kvp_config c = good();
    c.ram_bytes = 0;
    refused(c, -EINVAL, "ram_bytes");
    c.ram_bytes = UINT64_MAX;
    refused(c, -EINVAL, "ram_bytes");
    c = good();
    c.io_threads = 17;
    refused(c, -EINVAL, "io_threads");
    c = good();
    c.spill_bytes = 1;
    refused(c, -EINVAL, "spill_bytes");
    c = good();
    c.arena_alloc = [](void *, size_t) -> void * { return nullptr; };
    refused(c, -EINVAL, "arena_free");
}

TEST(Config, SpillDirectoryMustBeOnADisk) {
    kvp_config c = good();
    c.spill_dir = "/nonexistent-directory";
    refused(c, -ENOENT, "/nonexistent-directory");
    c.spill_dir = "";
    refused(c, -ENOENT, "spill file");
    c.spill_dir = "/proc";
    kvp_pager * p = nullptr;
    EXPECT_GT(0, kvp_pager_create(&c, &p));
    EXPECT_EQ(nullptr, p);
    if (access("/dev/shm", W_OK) != 0) {
        GTEST_SKIP() << "no /dev/shm to be refused";
    }
    c.spill_dir = "/dev/shm";
    refused(c, -EOPNOTSUPP, "lives in memory");
}

TEST(Config, LayersAreRefusedByName) {
    kvp_config c = good();
    kvp_pager * p = nullptr;
    ASSERT_EQ(0, kvp_pager_create(&c, &p));
    const kvp_layer_desc ok{0, 64, 2, 32, 32, KVP_F16, KVP_Q8_0};
    const auto bad = [&](void (*change)(kvp_layer_desc &), const char * word) {
        kvp_layer_desc d = ok;
        change(d);
        uint32_t number = 77;
        EXPECT_EQ(-EINVAL, kvp_layer_add(p, &d, &number)) << word;
        EXPECT_NE(nullptr, strstr(kvp_last_error(), word)) << kvp_last_error();
        EXPECT_EQ(77u, number);
    };
    EXPECT_EQ(-EINVAL, kvp_pager_start(p)) << "there are no layers";
    uint32_t number;
    ASSERT_EQ(0, kvp_layer_add(p, &ok, &number));
    bad([](kvp_layer_desc & d) { d.group = 16; }, "group");
    bad([](kvp_layer_desc & d) { d.n_cells = 0; }, "n_cells");
    bad([](kvp_layer_desc & d) { d.n_cells = UINT32_MAX; }, "n_cells");
    bad([](kvp_layer_desc & d) { d.n_cells = 65; }, "n_cells");
    bad([](kvp_layer_desc & d) { d.kv_heads = 0; }, "kv_heads");
    bad([](kvp_layer_desc & d) { d.kv_heads = UINT32_MAX; }, "kv_heads");
    bad([](kvp_layer_desc & d) { d.dk = 0; }, "dk");
    bad([](kvp_layer_desc & d) { d.dv = 40; }, "dv");
    bad([](kvp_layer_desc & d) { d.dk = UINT32_MAX; }, "dk");
    bad([](kvp_layer_desc & d) { d.type_k = 0; }, "type_k");
    bad([](kvp_layer_desc & d) { d.type_v = 9; }, "type_v");
    kvp_page at;
    EXPECT_EQ(-EINVAL, kvp_pin(p, 0, 0, &at)) << "not started";
    ASSERT_EQ(0, kvp_pager_start(p));
    EXPECT_EQ(-EINVAL, kvp_pager_start(p)) << "started already";
    EXPECT_EQ(-EINVAL, kvp_layer_add(p, &ok, &number)) << "started already";
    EXPECT_EQ(-EINVAL, kvp_pin(p, 1, 0, &at));
    EXPECT_EQ(-EINVAL, kvp_pin(p, 0, 4, &at));
    EXPECT_EQ(4096u, kvp_layer_v_offset(p, 0));
    EXPECT_EQ(4096u + 4096u, kvp_layer_page_bytes(p, 0));
    EXPECT_EQ(2u * 64, kvp_layer_row_k(p, 0));
    EXPECT_EQ(2u * 34, kvp_layer_row_v(p, 0));
    kvp_pager_free(p);
}

TEST(Config, MemoryMustHoldOnePage) {
    kvp_config c = good();
    c.ram_bytes = 8191;
    kvp_pager * p = nullptr;
    ASSERT_EQ(0, kvp_pager_create(&c, &p));
    const kvp_layer_desc d{0, 64, 2, 32, 32, KVP_F16, KVP_F16};
    uint32_t number;
    ASSERT_EQ(0, kvp_layer_add(p, &d, &number));
    EXPECT_EQ(-ENOMEM, kvp_pager_start(p));
    EXPECT_NE(nullptr, strstr(kvp_last_error(), "8192")) << kvp_last_error();
    kvp_pager_free(p);
}

TEST(Spill, LeavesNoName) {
    char dir[512];
    snprintf(dir, sizeof dir, "%s/kvp_test_XXXXXX", rig::disk());
    ASSERT_NE(nullptr, mkdtemp(dir));
    const auto before = names(dir);
    kvp_config c = good();
    c.spill_dir = dir;
    kvp_pager * p = nullptr;
    ASSERT_EQ(0, kvp_pager_create(&c, &p)) << kvp_last_error();
    const kvp_layer_desc d{0, 4096, 2, 32, 32, KVP_F16, KVP_F16};
    uint32_t number;
    ASSERT_EQ(0, kvp_layer_add(p, &d, &number));
    ASSERT_EQ(0, kvp_pager_start(p));
    ASSERT_EQ(0, kvp_reserve(p, 0, 256)) << kvp_last_error();
    EXPECT_EQ(before, names(dir));
    kvp_pager_free(p);
    EXPECT_EQ(before, names(dir));
    EXPECT_EQ(0, rmdir(dir));
}

TEST(Arena, OfTheCallerIsUsedAndGivenBack) {
    static int live;
    live = 0;
    kvp_config c = good();
    c.ram_bytes   = 3 * 8192;
    c.spill_dir   = rig::disk();
    c.arena_alloc = [](void *, size_t n) {
        live++;
        void * a = aligned_alloc(4096, n);
        memset(a, 0xcd, n);  // not zeros, unlike memory of the system
        return a;
    };
    c.arena_free = [](void *, void * base, size_t) {
        live--;
        free(base);
    };
    kvp_pager * p = nullptr;
    ASSERT_EQ(0, kvp_pager_create(&c, &p)) << kvp_last_error();
    const kvp_layer_desc d{0, 160, 2, 32, 32, KVP_F16, KVP_F16};
    uint32_t number;
    ASSERT_EQ(0, kvp_layer_add(p, &d, &number));
    ASSERT_EQ(0, kvp_pager_start(p));
    EXPECT_EQ(1, live);
    for (uint32_t i = 0; i < 10; i++) {
        kvp_page at;
        ASSERT_EQ(0, kvp_pin(p, 0, i, &at));
        EXPECT_EQ(0, at.k[0]);
        EXPECT_EQ(0, at.v[2047]);
        at.k[0] = uint8_t(i);
        kvp_unpin(p, 0, i, 1);
        kvp_drop(p, 0, i / 2);
    }
    kvp_pager_free(p);
    EXPECT_EQ(0, live);
}

TEST(Pager, DestroysWhatIsAttachedFirst) {
    rig::options o;
    auto p = std::make_unique<rig::pager>(o);
    int seen = 1;
    kvp_pager * raw = *p;
    kvp_attachment(raw) = std::shared_ptr<void>(nullptr, [&, raw](void *) {
        kvp_page at;
        seen = kvp_pin(raw, 0, 0, &at);  // the pager still works
        kvp_unpin(raw, 0, 0, 0);
    });
    p.reset();
    EXPECT_EQ(0, seen);
    kvp_pager_free(nullptr);
}

TEST(Pager, FailIsStickyAndWakesWaiters) {
    rig::options o;
    o.frames = 1;
    rig::pager p(o);
    kvp_page at;
    ASSERT_EQ(0, kvp_pin(p, 0, 0, &at));
    std::thread waiter([&] {
        kvp_page other;
        EXPECT_EQ(-EIO, kvp_pin(p, 0, 1, &other));
        EXPECT_STREQ("the device is gone", kvp_last_error());
    });
    kvp_fail(p, -EIO, "the device is gone");
    kvp_fail(p, -EINVAL, "something later");
    waiter.join();
    const char * message = nullptr;
    EXPECT_EQ(-EIO, kvp_pager_error(p, &message));
    EXPECT_STREQ("the device is gone", message);
    kvp_unpin(p, 0, 0, 1);
    kvp_scan * s = nullptr;
    const uint32_t page = 0;
    EXPECT_EQ(-EIO, kvp_scan_begin(p, 0, &page, 1, 0, 1, &s));
    EXPECT_EQ(nullptr, s);
}
