// Copies of pages in device memory: used again and again, and never when their page has
// become another.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "forward_case.h"
#include "history.h"

namespace {

using emulator::emulated_gpu;
using emulator::faults;

constexpr double bound = 1e-5;

// A case whose pages were attended so often that all that have room are in device memory.
struct warm_case {
    forward_case                        c;
    emulated_gpu                        g{7};
    std::unique_ptr<kvp_gpu::paged_gpu> paged;

    // change_table makes the ops' table another one, where it is given.
    explicit warm_case(const forward_shape & s, void (*change_table)(kvp_iface *) = nullptr)
        : c(s), paged(kvp_gpu::paged_gpu::make(g, c.config())), change_table_(change_table) {
        for (uint32_t i = 0; i < 3; ++i) {
            batch();
        }
    }

    void batch() {
        c.begin_batch();
        kvp_op_head * head = reinterpret_cast<kvp_op_head *>(c.op);
        kvp_iface table = *head->iface;
        if (change_table_) {
            change_table_(&table);
            head->iface = &table;
        }
        ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
        ASSERT_EQ(g.wrong(), "");
    }

    uint64_t hits() const { return paged->hot().hits; }

private:
    void (*change_table_)(kvp_iface *);
};

forward_shape warm_shape() {
    forward_shape s;
    s.hot = 40;
    s.history = 90;
    s.n_q = 1;
    s.frames = 3;
    return s;
}

// Rows like those of other cells, but other ones.
void write_other_rows(kvp_pager * pager, std::vector<uint32_t> cells) {
    std::vector<uint16_t> k(cells.size() * kvp_layer_row_k(pager, 0) / 2), v(cells.size() * kvp_layer_row_v(pager, 0) / 2);
    for (size_t i = 0; i < k.size(); ++i) {
        k[i] = uint16_t(0x3c00 + i % 7 * 0x40);  // 1 and more
    }
    for (size_t i = 0; i < v.size(); ++i) {
        v[i] = uint16_t(0xc000 + i % 5 * 0x40);  // -2 and less
    }
    ASSERT_EQ(kvp_rows_write(pager, 0, cells.data(), uint32_t(cells.size()), k.data(), v.data()), 0) << kvp_last_error();
}

void rotate_all(kvp_pager * pager, uint32_t page) {
    const uint64_t cells = ~0ull;
    const kvp_plane planes[] = {{0, 1, {0, -2, 2, 0}}, {10, 40, {0, 3, -3, 0}}};
    ASSERT_EQ(kvp_rotate(pager, 0, page, &cells, planes, 2), 0) << kvp_last_error();
}

// A file with a page's worth of rows, all of them numbers below 2.
int file_of_rows(kvp_pager * pager) {
    std::string name = std::string(SPILL_DIR) + "/hot_tier_XXXXXX";
    const int fd = mkstemp(&name[0]);
    unlink(name.c_str());
    const std::vector<uint16_t> data(kvp_layer_page_bytes(pager, 0) / 2, 0x3e00);
    EXPECT_EQ(pwrite(fd, data.data(), data.size() * 2, 0), ssize_t(data.size() * 2));
    return fd;
}

struct change {
    const char * name;
    void (*make)(kvp_pager * pager);
    bool in_growing_page = false;
};

const change changes[] = {
    {"rows of a page", [](kvp_pager * p) { write_other_rows(p, {17, 18, 19, 20}); }},
    {"rows of two pages, back and forth", [](kvp_pager * p) { write_other_rows(p, {33, 17, 34, 18}); }},
    {"a row of the page that grows", [](kvp_pager * p) { write_other_rows(p, {91}); }, true},
    {"a rotation", [](kvp_pager * p) { rotate_all(p, 2); }},
    {"two rotations", [](kvp_pager * p) { rotate_all(p, 2); rotate_all(p, 2); }},
    {"a drop", [](kvp_pager * p) { kvp_drop(p, 0, 1); }},
    {"a drop and new rows", [](kvp_pager * p) { kvp_drop(p, 0, 1); write_other_rows(p, {16, 17, 18}); }},
    {"a page written through a pin", [](kvp_pager * p) {
         kvp_page page;
         ASSERT_EQ(kvp_pin(p, 0, 3, &page), 0);
         std::swap_ranges(page.k, page.k + 512, page.k + 1024);
         kvp_unpin(p, 0, 3, 1);
     }},
    {"a drop and a backing by files", [](kvp_pager * p) {
         kvp_drop(p, 0, 1);
         const int fd = file_of_rows(p);
         const kvp_extent x = {fd, 0, 16, 0, 4096};
         EXPECT_EQ(kvp_back(p, 0, 1, &x, 1), 0) << kvp_last_error();
         close(fd);
     }},
};

} // namespace

TEST(hot_tier, every_change_of_a_page_is_seen) {
    for (const change & change : changes) {
        warm_case w(warm_shape());
        const uint64_t hits = w.hits();
        ASSERT_NO_FATAL_FAILURE(change.make(w.c.pager)) << change.name;
        w.batch();
        EXPECT_LE(w.c.worst(), bound) << change.name;
        EXPECT_GT(w.hits(), hits) << change.name << ": the other pages are used as they are";
        // Pages that were streamed again are hot again.
        const uint64_t fills = w.paged->hot().fills;
        w.batch();
        EXPECT_LE(w.c.worst(), bound) << change.name;
        EXPECT_EQ(w.paged->hot().fills, fills) << change.name;
    }
}

// The same changes with versions that stand still: every one of them is missed, so that it
// is versions that keep results right above.
TEST(hot_tier, without_versions_every_change_would_be_missed) {
    for (const change & change : changes) {
        warm_case w(warm_shape(), [](kvp_iface * table) {
            table->page_version = [](const kvp_pager *, uint32_t, uint32_t) -> uint64_t { return 1; };
        });
        ASSERT_NO_FATAL_FAILURE(change.make(w.c.pager)) << change.name;
        w.batch();
        // The page that grows has no copy then: its own new row counts as a change.
        EXPECT_TRUE(change.in_growing_page || w.c.worst() > bound) << change.name;
    }
}

TEST(hot_tier, an_older_table_means_no_copies) {
    warm_case w(warm_shape(), [](kvp_iface * table) {
        table->size = offsetof(kvp_iface, page_version);
        table->page_version = [](const kvp_pager *, uint32_t, uint32_t) -> uint64_t { return 1; };
    });
    EXPECT_LE(w.c.worst(), bound);
    EXPECT_EQ(w.paged->hot().copies, 0u);
    EXPECT_EQ(w.hits(), 0u);
}

// A sequence that grows: each page is streamed once, when it begins, and its copy gets the
// rows of every batch.
TEST(hot_tier, a_page_that_grows_stays) {
    for (uint32_t n_q : {1u, 3u, 20u}) {
        forward_shape s = warm_shape();
        s.n_q = n_q;
        s.history = 10;
        warm_case w(s);
        for (uint32_t i = 0; i < 12; ++i) {
            ASSERT_NO_FATAL_FAILURE(w.batch());
            ASSERT_LE(w.c.worst(), bound) << n_q << " queries, batch " << i;
        }
        const uint32_t pages = (s.history + 15 * n_q + s.page_cells - 1) / s.page_cells;
        EXPECT_EQ(w.paged->hot().fills, pages) << n_q;
        EXPECT_EQ(w.paged->hot().copies, pages) << n_q;
        EXPECT_GT(w.hits(), pages) << n_q;
    }
}

// Rows that are restored while an op computes: into a page that is being copied, and into
// the one that the op writes to. The op may or may not see them, the next one has to.
TEST(hot_tier, a_change_during_an_op_is_seen_by_the_next) {
    static bool armed;
    for (const bool while_copied : {true, false}) {
        armed = false;
        warm_case w(warm_shape(), while_copied ? [](kvp_iface * table) {
            table->pin = [](kvp_pager * pager, uint32_t layer, uint32_t page, kvp_page * out) {
                const int e = kvp_pin(pager, layer, page, out);
                if (armed && page == 2) {
                    armed = false;
                    write_other_rows(pager, {36, 37, 38});
                }
                return e;
            };
        } : [](kvp_iface * table) {
            table->rows_write = [](kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, const void * k, const void * v) {
                if (armed) {
                    armed = false;
                    write_other_rows(pager, {90, 91});
                }
                return kvp_rows_write(pager, layer, cells, n, k, v);
            };
        });
        if (while_copied) {
            write_other_rows(w.c.pager, {35});  // so that the page is copied again
        }
        armed = true;
        w.batch();
        ASSERT_FALSE(armed);
        w.batch();
        EXPECT_LE(w.c.worst(), bound) << while_copied;
    }
}

// Copies are attended many to a launch, in between streamed pages or alone, and with few
// rows or many: the bits are those of pages that are all streamed.
TEST(hot_tier, changes_no_bit) {
    for (const uint32_t page_cells : {16u, 128u, 256u, 1024u}) {
        for (const uint32_t n_q : {1u, 6u, 40u}) {
            std::vector<float> streamed;
            for (const uint32_t room : {0u, 2u, 5u, 40u}) {
                forward_shape s;
                s.page_cells = page_cells;
                s.history = page_cells == 16 ? 200 : page_cells * 5 / 2;
                s.n_q = n_q;
                s.hot = room;
                s.sinks = n_q == 6;
                s.window = n_q == 6 ? 150 : INT32_MAX;
                warm_case w(s);
                streamed = streamed.empty() ? w.c.out : streamed;
                EXPECT_EQ(w.c.out, streamed) << page_cells << " cells, " << n_q << " queries, room for " << room;
                EXPECT_EQ(w.hits() > 0, room > 0);
            }
        }
    }
}

TEST(hot_tier, takes_no_more_than_it_may) {
    for (uint32_t pages : {0u, 1u, 3u}) {
        forward_shape s = warm_shape();
        s.hot = pages;
        warm_case w(s);
        EXPECT_EQ(w.g.kept_blocks(), pages);
        EXPECT_EQ(w.paged->hot().bytes, pages * kvp_layer_page_bytes(w.c.pager, 0));
        EXPECT_EQ(w.hits(), pages * 2) << "in the second batch and in the third";
        EXPECT_LE(w.c.worst(), bound);
    }
}

// The tier takes the device's memory beyond the part to keep free, and not more; and no
// room at all.
TEST(hot_tier, leaves_memory_to_others) {
    for (const uint64_t keep_pages : {4u, 40u}) {
        forward_case c(warm_shape());
        const uint64_t page = kvp_layer_page_bytes(c.pager, 0);
        faults f;
        f.memory = 40 * page;
        emulated_gpu g(1, f);
        kvp_cuda_config config = c.config();
        config.vram_bytes = UINT64_MAX;
        config.vram_keep = keep_pages * page;
        auto paged = kvp_gpu::paged_gpu::make(g, config);
        for (uint32_t i = 0; i < 3; ++i) {
            c.begin_batch();
            ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
            EXPECT_LE(c.worst(), bound);
        }
        EXPECT_EQ(paged->hot().copies > 0, keep_pages == 4);
        EXPECT_LE(paged->hot().bytes, f.memory - config.vram_keep);
    }
}

// Two conversations take turns, each pass with all of its pages, with room for the pages
// of one: the first conversation's pages stay while it is used, and go when it is not.
TEST(hot_tier, who_is_not_used_any_more_makes_room) {
    forward_shape s = warm_shape();
    s.hot = 7;
    forward_case first(s), second(s);
    emulated_gpu g(5);
    auto paged = kvp_gpu::paged_gpu::make(g, first.config());
    const auto batch = [&](forward_case & c) {
        c.begin_batch();
        ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
        ASSERT_LE(c.worst(), bound);
    };
    for (uint32_t i = 0; i < 4; ++i) {
        batch(first);
        batch(second);
    }
    EXPECT_EQ(paged->hot().evictions, 0u);
    for (uint32_t i = 0; i < 8; ++i) {
        batch(second);
    }
    EXPECT_GE(paged->hot().evictions, 5u);
    const uint64_t hits = paged->hot().hits;
    batch(second);
    EXPECT_EQ(paged->hot().hits - hits, 7u);
    batch(first);
    EXPECT_EQ(g.wrong(), "");
}

// Pages of another size: memory goes back to the device, and comes from there.
TEST(hot_tier, room_of_another_size) {
    forward_shape s = warm_shape(), wide = warm_shape();
    wide.dk = wide.dv = 128;
    wide.hot = s.hot = 6;
    forward_case c(s), other(wide);
    const uint64_t page = kvp_layer_page_bytes(c.pager, 0), wide_page = kvp_layer_page_bytes(other.pager, 0);
    ASSERT_EQ(wide_page, 2 * page);
    emulated_gpu g(5);
    auto paged = kvp_gpu::paged_gpu::make(g, c.config());
    for (uint32_t i = 0; i < 3; ++i) {
        c.begin_batch();
        ASSERT_EQ(c.run(g, *paged), 0) << kvp_last_error();
    }
    EXPECT_EQ(paged->hot().copies, 6u);
    for (uint32_t i = 0; i < 8; ++i) {
        other.begin_batch();
        ASSERT_EQ(other.run(g, *paged), 0) << kvp_last_error();
        ASSERT_LE(other.worst(), bound);
    }
    EXPECT_EQ(paged->hot().copies, 3u);
    EXPECT_EQ(g.kept_blocks(), 3u);
    EXPECT_EQ(paged->hot().bytes, 6 * page);
    EXPECT_EQ(g.wrong(), "");
}

TEST(hot_tier, a_reserving_batch_keeps_nothing) {
    forward_case c(warm_shape());
    emulated_gpu g(1);
    auto paged = kvp_gpu::paged_gpu::make(g, c.config());
    c.begin_batch(true);
    EXPECT_EQ(c.run(g, *paged), 0);
    EXPECT_EQ(g.kept_blocks(), 0u);
    EXPECT_EQ(g.pool_blocks(), 0u);
}

// Every operation that a runner makes on a cache, in random order and number, with room for
// few copies and for all: each result is exact, and the same bits as without copies.
TEST(hot_tier, no_history_makes_a_stale_copy) {
    uint64_t seed = 1, hits = 0, evictions = 0;
    for (int type : {KVP_F16, KVP_Q8_0}) {
        for (uint32_t room : {1u, 4u, 9u, history::PAGES * history::LAYERS}) {
            const kvp_layer_desc layer = history::layer_of(type, 64);
            kvp_cuda_config config = {};
            config.slots = 2 + room % 2;
            emulated_gpu g(seed), plain_g(seed + 1000);
            auto plain = kvp_gpu::paged_gpu::make(plain_g, config);
            config.vram_bytes = room * uint64_t(1 << 13);
            config.vram_keep = 1;
            auto hot = kvp_gpu::paged_gpu::make(g, config);
            std::vector<float> without;
            const uint32_t frames = 2 + uint32_t(seed * 5 % 13);
            history h(uint32_t(seed++), layer, frames, [&](kvp_op * op, const kvp_io & io) {
                if (int e = forward_from_host(g, *hot, op, io)) {
                    return e;
                }
                // The rows are in their pages now.
                const uint32_t n = kvp_batch_get(kvp_op_batch(op))->n_q * history::HEADS * layer.dv;
                without.assign(n, -7.0f);
                kvp_io again = io;
                again.k_new = again.v_new = kvp_f32();
                again.out = without.data();
                const int e = forward_from_host(plain_g, *plain, op, again);
                return e ? e : std::equal(without.begin(), without.end(), io.out) ? 0 : -EILSEQ;
            });
            ASSERT_LE(kvp_layer_page_bytes(h.pager.p, 0), 1u << 13);
            for (uint32_t i = 0; i < 50; ++i) {
                SCOPED_TRACE("room for " + std::to_string(room) + ", step " + std::to_string(i));
                h.step();
                ASSERT_EQ(g.wrong(), "");
                if (HasFatalFailure()) {
                    return;
                }
            }
            hits += hot->hot().hits;
            evictions += hot->hot().evictions;
        }
    }
    EXPECT_GT(hits, 500u);
    EXPECT_GT(evictions, 5u);
}

// With workers on the CPU, pages that are to be kept still go to the device.
TEST(hot_tier, histories_with_workers) {
    for (uint32_t room : {3u, history::PAGES * history::LAYERS}) {
        const kvp_layer_desc layer = history::layer_of(KVP_F16, 64);
        kvp_cuda_config config = {};
        config.workers = 2;
        config.vram_bytes = room * uint64_t(1 << 13);
        config.vram_keep = 1;
        emulated_gpu g(room);
        auto paged = kvp_gpu::paged_gpu::make(g, config);
        uint64_t on_cpu = 0;
        history h(room, layer, 4, [&](kvp_op * op, const kvp_io & io) {
            const int e = forward_from_host(g, *paged, op, io);
            on_cpu += paged->measured().cpu.bytes;
            return e;
        });
        for (uint32_t i = 0; i < 50; ++i) {
            SCOPED_TRACE("room for " + std::to_string(room) + ", step " + std::to_string(i));
            h.step();
            ASSERT_EQ(g.wrong(), "");
            if (HasFatalFailure()) {
                return;
            }
        }
        EXPECT_GT(paged->hot().hits, 50u);
        EXPECT_EQ(on_cpu > 0, room == 3u);
    }
}
