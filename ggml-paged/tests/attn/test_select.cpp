// Queries that choose what they attend to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "fixture.h"
#include "reference.h"

namespace {

// A world is a layer with random rows, sequences in its cells, and queries.
struct world {
    kvp_layer_desc layer{};
    kvp_params     params{};
    uint32_t       page_cells = 16;
    batch_args     batch;
    std::vector<uint8_t> k, v;  // [n_cells] rows
    std::vector<float>   q;     // [n_q][heads][dk]

    size_t row_k() const { return layer.kv_heads * kvp_row_bytes(layer.type_k, layer.dk); }
    size_t row_v() const { return layer.kv_heads * kvp_row_bytes(layer.type_v, layer.dv); }
    uint32_t pages() const { return (layer.n_cells + page_cells - 1) / page_cells; }
};

float uniform(std::mt19937 & random) {
    return (float) (int) (random() % 20001) / 10000.0f - 1.0f;
}

template <typename T> T one_of(std::mt19937 & random, std::initializer_list<T> values) {
    return *(values.begin() + random() % values.size());
}

void fill_rows(std::mt19937 & random, int type, uint32_t dim, uint32_t rows, std::vector<uint8_t> & out) {
    std::vector<float> row(dim);
    out.resize(rows * kvp_row_bytes(type, dim));
    for (uint32_t i = 0; i < rows; i++) {
        std::generate(row.begin(), row.end(), [&] { return uniform(random); });
        kvp_quantize_row(type, row.data(), &out[i * kvp_row_bytes(type, dim)], dim);
    }
}

// add_cells gives each of several sequences its positions, some of them shared, in runs of cells
// or one cell by turns, with free cells between.
void add_cells(std::mt19937 & random, world & w, uint32_t n_seqs) {
    const uint32_t run = one_of(random, {1u, 7u, 64u, 1000u});
    std::vector<int32_t> next(n_seqs, 0);
    for (uint32_t c = 0; c < w.layer.n_cells; c++) {
        const uint32_t seq = c / run % n_seqs;
        if (random() % 13 == 0) {
            w.batch.pos.push_back(0);
            w.batch.seqs.push_back(0);
            continue;
        }
        const bool all = c < w.layer.n_cells / 4 && run == 1000;
        w.batch.pos.push_back(next[seq]);
        w.batch.seqs.push_back(all ? (1ull << n_seqs) - 1 : 1ull << seq);
        for (uint32_t s = 0; s < n_seqs; s++) {
            next[s] += all || s == seq;
        }
    }
    for (uint32_t seq = 0; seq < n_seqs; seq++) {
        w.batch.q_pos.push_back(next[seq]);
        w.batch.q_seq.push_back(seq);
        w.batch.q_select.push_back(1);
    }
}

world random_world(uint32_t seed) {
    std::mt19937 random(seed);
    world w;
    w.page_cells = one_of(random, {16u, 32u, 64u});
    w.layer.n_cells  = w.page_cells * (6 + random() % 20) - random() % 9;
    w.layer.kv_heads = one_of(random, {1u, 2u, 3u});
    w.layer.dk       = one_of(random, {32u, 64u});
    w.layer.dv       = one_of(random, {32u, 64u});
    w.layer.type_k   = one_of<int>(random, {KVP_F16, KVP_Q8_0, KVP_Q4_0});
    w.layer.type_v   = one_of<int>(random, {KVP_F16, KVP_Q8_0});
    w.params = {0, w.layer.kv_heads * one_of(random, {1u, 2u, 5u}), 1.0f, random() % 4 == 0 ? 20.0f : 0.0f, 0, 0};
    w.params.select_cells = w.page_cells * (3 + random() % 5);
    add_cells(random, w, 1 + random() % 4);
    w.batch.window = random() % 3 == 0 ? (int32_t) (w.layer.n_cells / 3) : INT32_MAX;
    fill_rows(random, w.layer.type_k, w.layer.dk, w.layer.n_cells * w.layer.kv_heads, w.k);
    fill_rows(random, w.layer.type_v, w.layer.dv, w.layer.n_cells * w.layer.kv_heads, w.v);
    w.q.resize(w.batch.q_pos.size() * w.params.heads * w.layer.dk);
    std::generate(w.q.begin(), w.q.end(), [&] { return uniform(random); });
    return w;
}

void write_all(small_pager & pager, const world & w) {
    std::vector<uint32_t> cells(w.layer.n_cells);
    for (uint32_t c = 0; c < w.layer.n_cells; c++) {
        cells[c] = c;
    }
    ASSERT_EQ(kvp_rows_write(pager.p, 0, cells.data(), w.layer.n_cells, w.k.data(), w.v.data()), 0) << kvp_last_error();
}

// attend computes queries of the world; which: all of them if empty.
std::vector<float> attend(small_pager & pager, const world & w, uint32_t threads, const std::vector<uint32_t> & which = {}) {
    batch_args a = w.batch;
    std::vector<float> q = w.q;
    if (!which.empty()) {
        a.q_pos.clear(), a.q_seq.clear(), a.q_select.clear(), q.clear();
        const size_t row = (size_t) w.params.heads * w.layer.dk;
        for (uint32_t i : which) {
            a.q_pos.push_back(w.batch.q_pos[i]);
            a.q_seq.push_back(w.batch.q_seq[i]);
            a.q_select.push_back(w.batch.q_select[i]);
            q.insert(q.end(), w.q.begin() + i * row, w.q.begin() + (i + 1) * row);
        }
    }
    const kvp_batch_desc d = a.desc();
    kvp_batch * b;
    kvp_op *    op;
    EXPECT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
    EXPECT_EQ(kvp_op_new(b, &w.params, &op), 0) << kvp_last_error();
    op_args args(w.layer, w.params.heads, d.n_q, false);
    args.q = q;
    EXPECT_EQ(forward(op, args.io(w.layer, w.params.heads), threads), 0) << kvp_last_error();
    return args.out;
}

std::vector<float> attend_anew(const world & w, uint32_t frames, uint32_t threads) {
    small_pager pager(w.page_cells, frames, {w.layer});
    write_all(pager, w);
    return attend(pager, w, threads);
}

bool in_sequence(const world & w, uint32_t cell, uint32_t query) {
    return (w.batch.seqs[cell] >> w.batch.q_seq[query] & 1) != 0;
}

bool sees(const world & w, uint32_t cell, uint32_t query) {
    const int64_t q = w.batch.q_pos[query], pos = w.batch.pos[cell];
    return in_sequence(w, cell, query) && pos <= q && (w.batch.window == INT32_MAX || pos >= q - w.batch.window);
}

float half(float x) {
    uint16_t h;
    kvp_quantize_row(KVP_F16, &x, &h, 1);
    kvp_dequantize_row(KVP_F16, &h, &x, 1);
    return x;
}

// A block that a query sees, as the header defines its worth.
struct candidate {
    uint32_t number = 0;  // of the block: positions over page_cells
    std::vector<uint32_t> cells;
    int32_t  pos_min = INT32_MAX, pos_max = INT32_MIN;
    bool     seen = false;
    double   worth = 0;
};

// bound_of is the greatest score that a head's row could have with keys between the least and
// the greatest value of each channel.
double bound_of(const world & w, const candidate & c, uint32_t query, uint32_t head) {
    const kvp_layer_desc & l = w.layer;
    const uint32_t kv_head = head / (w.params.heads / l.kv_heads);
    std::vector<float> greatest(l.dk, -INFINITY), least(l.dk, INFINITY), row(l.dk);
    for (uint32_t cell : c.cells) {
        kvp_dequantize_row(l.type_k, &w.k[cell * w.row_k() + kv_head * kvp_row_bytes(l.type_k, l.dk)], row.data(), l.dk);
        for (uint32_t d = 0; d < l.dk; d++) {
            greatest[d] = std::max(greatest[d], row[d]);
            least[d]    = std::min(least[d], row[d]);
        }
    }
    double sum = 0;
    for (uint32_t d = 0; d < l.dk; d++) {
        const double x = (double) w.params.scale * w.q[((size_t) query * w.params.heads + head) * l.dk + d];
        sum += std::max(x * half(greatest[d]), x * half(least[d]));
    }
    return w.params.softcap > 0 ? w.params.softcap * std::tanh(sum / w.params.softcap) : sum;
}

std::vector<candidate> candidates(const world & w, uint32_t query) {
    std::map<uint32_t, candidate> all;
    for (uint32_t cell = 0; cell < w.layer.n_cells; cell++) {
        if (in_sequence(w, cell, query)) {
            const uint32_t number = (uint32_t) w.batch.pos[cell] / w.page_cells;
            candidate & c = all[number];
            c.number  = number;
            c.pos_min = std::min(c.pos_min, w.batch.pos[cell]);
            c.pos_max = std::max(c.pos_max, w.batch.pos[cell]);
            c.seen    = c.seen || sees(w, cell, query);
            c.cells.push_back(cell);
        }
    }
    std::vector<candidate> out;
    for (const auto & [number, c] : all) {
        if (c.seen) {
            out.push_back(c);
        }
    }
    return out;
}

// choose_blocks returns the blocks a query attends to. Sure is false where two blocks' worths are too
// near to each other to tell in f32.
std::set<uint32_t> choose_blocks(const world & w, uint32_t query, bool & sure) {
    std::vector<candidate> all = candidates(w, query);
    const int32_t newest = (int32_t) std::max(w.page_cells, w.params.select_cells / 8);
    const auto fixed = [&](const candidate & c) { return c.pos_min < 4 || c.pos_max > w.batch.q_pos[query] - newest; };
    for (uint32_t head = 0; head < w.params.heads; head++) {
        std::map<uint32_t, double> mass;
        double sum = 0;
        for (const candidate & c : all) {
            if (!fixed(c)) {
                sum += mass[c.number] = (double) c.cells.size() * std::exp(bound_of(w, c, query, head));
            }
        }
        for (candidate & c : all) {
            c.worth += fixed(c) ? INFINITY : mass[c.number] / sum;
        }
    }
    std::sort(all.begin(), all.end(), [](const candidate & a, const candidate & b) {
        return a.worth != b.worth ? a.worth > b.worth : a.number > b.number;
    });
    size_t n = std::max(3u, w.params.select_cells / w.page_cells);
    n = 4 * n < 3 * all.size() ? n : all.size();
    sure = n == all.size() || std::isinf(all[n].worth) || std::isinf(all[n - 1].worth) || all[n - 1].worth > all[n].worth * 1.0001;
    std::set<uint32_t> out;
    for (size_t i = 0; i < n; i++) {
        out.insert(all[i].number);
    }
    return out;
}

// expected computes a query over some blocks in f64.
std::vector<double> expected(const world & w, uint32_t query, const std::set<uint32_t> & blocks) {
    std::vector<int32_t>  pos;
    std::vector<uint64_t> seqs;
    std::vector<uint8_t>  k, v;
    for (uint32_t cell = 0; cell < w.layer.n_cells; cell++) {
        if (blocks.count((uint32_t) w.batch.pos[cell] / w.page_cells) != 0) {
            pos.push_back(w.batch.pos[cell]);
            seqs.push_back(w.batch.seqs[cell]);
            k.insert(k.end(), &w.k[cell * w.row_k()], &w.k[cell * w.row_k()] + w.row_k());
            v.insert(v.end(), &w.v[cell * w.row_v()], &w.v[cell * w.row_v()] + w.row_v());
        }
    }
    const reference_cells cells = {(uint32_t) pos.size(), pos.data(), seqs.data(), k.data(), v.data()};
    const reference_query q = {w.batch.q_pos[query], w.batch.q_seq[query], false, &w.q[(size_t) query * w.params.heads * w.layer.dk]};
    std::vector<double> out;
    for (uint32_t head = 0; head < w.params.heads; head++) {
        const std::vector<double> row = reference_row(w.layer, w.params, w.batch.desc(), cells, q, head, nullptr);
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

} // namespace

TEST(select, attends_to_the_blocks_of_the_greatest_bounds_alone) {
    int unsure = 0, narrowed = 0;
    constexpr int WORLDS = 600;
    for (uint32_t seed = 1; seed <= WORLDS; seed++) {
        const world w = random_world(seed);
        const std::vector<float> got = attend_anew(w, 1 + seed % w.pages(), 1 + seed % 4);
        for (uint32_t query = 0; query < w.batch.q_pos.size(); query++) {
            bool sure;
            const std::set<uint32_t> pages = choose_blocks(w, query, sure);
            unsure += !sure;
            narrowed += pages.size() < candidates(w, query).size();
            const std::vector<double> want = expected(w, query, pages);
            for (size_t i = 0; i < want.size() && sure; i++) {
                ASSERT_NEAR(got[query * want.size() + i], want[i], 1e-4) << "world " << seed << " query " << query;
            }
        }
    }
    EXPECT_LT(unsure, WORLDS / 20);
    EXPECT_GT(narrowed, WORLDS / 2);
}

TEST(select, the_bits_depend_on_neither_memory_threads_nor_other_queries) {
    for (uint32_t seed = 1; seed <= 60; seed++) {
        const world w = random_world(seed);
        small_pager pager(w.page_cells, w.pages(), {w.layer});
        write_all(pager, w);
        const std::vector<float> want = attend(pager, w, 1);
        for (uint32_t threads : {1u, 3u}) {
            EXPECT_EQ(attend_anew(w, 1, threads), want) << seed;
            EXPECT_EQ(attend(pager, w, threads), want) << "again " << seed;
        }
        kvp_select_stats stats;
        kvp_pager_select_stats(pager.p, &stats);
        if (stats.seen_blocks == 0) {
            continue;  // fits
        }
        const size_t row = (size_t) w.params.heads * w.layer.dv;
        for (uint32_t query = 0; query < w.batch.q_pos.size(); query++) {
            bool sure;
            if (choose_blocks(w, query, sure).size() < candidates(w, query).size()) {
                EXPECT_EQ(attend(pager, w, 2, {query}), std::vector<float>(want.begin() + query * row, want.begin() + (query + 1) * row)) << seed;
            }
        }
    }
}

// A restore puts rows elsewhere, and slots that answered together share pages.
TEST(select, the_choice_does_not_depend_on_the_places_of_cells) {
    for (uint32_t seed = 1; seed <= 100; seed++) {
        const world w = random_world(seed);
        world moved = w;
        std::mt19937 random(seed);
        std::vector<uint32_t> to(w.layer.n_cells);
        std::iota(to.begin(), to.end(), 0u);
        std::shuffle(to.begin(), to.end(), random);
        for (uint32_t cell = 0; cell < w.layer.n_cells; cell++) {
            moved.batch.pos[to[cell]]  = w.batch.pos[cell];
            moved.batch.seqs[to[cell]] = w.batch.seqs[cell];
            std::copy_n(&w.k[cell * w.row_k()], w.row_k(), &moved.k[to[cell] * w.row_k()]);
            std::copy_n(&w.v[cell * w.row_v()], w.row_v(), &moved.v[to[cell] * w.row_v()]);
        }
        const std::vector<float> want = attend_anew(w, w.pages(), 1), got = attend_anew(moved, w.pages(), 2);
        for (size_t i = 0; i < want.size(); i++) {
            ASSERT_NEAR(got[i], want[i], 1e-5) << seed;
        }
    }
}

TEST(select, layers_have_bounds_of_their_own) {
    for (uint32_t seed = 1; seed <= 20; seed++) {
        world w = random_world(seed);
        world other = w;
        std::mt19937 random(seed);
        fill_rows(random, w.layer.type_k, w.layer.dk, w.layer.n_cells * w.layer.kv_heads, other.k);
        small_pager pager(w.page_cells, w.pages(), {w.layer, w.layer});
        write_all(pager, other);
        std::vector<uint32_t> cells(w.layer.n_cells);
        std::iota(cells.begin(), cells.end(), 0u);
        ASSERT_EQ(kvp_rows_write(pager.p, 1, cells.data(), w.layer.n_cells, w.k.data(), w.v.data()), 0);
        EXPECT_EQ(attend(pager, other, 2), attend_anew(other, 2, 1)) << seed;
        const std::vector<float> want = attend_anew(w, 2, 1);
        w.params.layer = 1;
        EXPECT_EQ(attend(pager, w, 2), want) << seed;
    }
}

TEST(select, bounds_follow_every_change_of_rows) {
    for (uint32_t seed = 1; seed <= 60; seed++) {
        world w = random_world(seed);
        small_pager pager(w.page_cells, 1 + seed % w.pages(), {w.layer});
        write_all(pager, w);
        attend(pager, w, 2);
        std::mt19937 random(seed);
        for (int change = 0; change < 4; change++) {
            const uint32_t cell = random() % w.layer.n_cells;
            switch (random() % 3) {
                case 0: {  // another row
                    std::vector<uint8_t> k;
                    fill_rows(random, w.layer.type_k, w.layer.dk, w.layer.kv_heads, k);
                    std::copy(k.begin(), k.end(), &w.k[cell * w.row_k()]);
                    ASSERT_EQ(kvp_rows_write(pager.p, 0, &cell, 1, k.data(), &w.v[cell * w.row_v()]), 0);
                    break;
                }
                case 1:  // the cell is free
                    w.batch.seqs[cell] = 0;
                    break;
                case 2: {  // a shift
                    const uint32_t page = cell / w.page_cells;
                    const uint64_t cells = 1ull << cell % w.page_cells;
                    const kvp_plane plane = {0, 1, {0, -1, 1, 0}};
                    ASSERT_EQ(kvp_rotate(pager.p, 0, page, &cells, &plane, 1), 0);
                    ASSERT_EQ(kvp_rows_read(pager.p, 0, &cell, 1, &w.k[cell * w.row_k()], nullptr), 0);
                    break;
                }
            }
            EXPECT_EQ(attend(pager, w, 2), attend_anew(w, w.pages(), 1)) << seed;
        }
    }
}

TEST(select, bounds_of_dropped_pages_take_no_memory) {
    for (uint32_t seed = 1; seed <= 20; seed++) {
        const world w = random_world(seed);
        small_pager pager(w.page_cells, w.pages(), {w.layer});
        write_all(pager, w);
        const std::vector<float> want = attend(pager, w, 2);
        kvp_select_stats stats, before;
        kvp_pager_select_stats(pager.p, &before);
        for (uint32_t page = 0; page < w.pages(); page++) {
            kvp_bounds_drop(pager.p, 1, page);  // of another group
        }
        kvp_pager_select_stats(pager.p, &stats);
        EXPECT_EQ(stats.bounds_bytes, before.bounds_bytes);
        for (uint32_t page = 0; page < w.pages(); page++) {
            kvp_drop(pager.p, 0, page);
            kvp_bounds_drop(pager.p, 0, page);
        }
        kvp_pager_select_stats(pager.p, &stats);
        EXPECT_EQ(stats.bounds_bytes, 0u);
        write_all(pager, w);
        EXPECT_EQ(attend(pager, w, 2), want) << seed;
        kvp_pager_select_stats(pager.p, &stats);
        EXPECT_LE(stats.bounds_bytes, kvp_bounds_bytes(pager.p, 0) * w.pages() * w.batch.q_pos.size());
    }
}

TEST(select, a_budget_for_all_is_exact) {
    for (uint32_t seed = 1; seed <= 40; seed++) {
        world w = random_world(seed);
        w.params.select_cells = w.layer.n_cells + w.page_cells;
        const std::vector<float> got = attend_anew(w, 2, 2);
        w.params.select_cells = 0;
        EXPECT_EQ(got, attend_anew(w, 2, 2)) << seed;
    }
}

TEST(select, queries_that_are_not_marked_attend_to_all) {
    for (uint32_t seed = 1; seed <= 60; seed++) {
        world w = random_world(seed);
        w.params.softcap = 0;
        std::mt19937 random(seed);
        for (uint32_t i = 0; i < 4; i++) {  // a prompt's, before and behind the marked ones
            const auto at = random() % (w.batch.q_pos.size() + 1);
            w.batch.q_pos.insert(w.batch.q_pos.begin() + at, w.batch.q_pos[0] - (int32_t) i);
            w.batch.q_seq.insert(w.batch.q_seq.begin() + at, w.batch.q_seq[0]);
            w.batch.q_select.insert(w.batch.q_select.begin() + at, 0);
        }
        w.q.resize(w.batch.q_pos.size() * w.params.heads * w.layer.dk);
        std::generate(w.q.begin(), w.q.end(), [&] { return uniform(random); });
        const std::vector<float> got = attend_anew(w, 2, 1 + seed % 3);
        for (uint32_t query = 0; query < w.batch.q_pos.size(); query++) {
            bool sure = true;
            std::set<uint32_t> pages;
            for (const candidate & c : candidates(w, query)) {
                pages.insert(c.number);
            }
            if (w.batch.q_select[query]) {
                pages = choose_blocks(w, query, sure);
            }
            const std::vector<double> want = expected(w, query, pages);
            for (size_t i = 0; i < want.size() && sure; i++) {
                ASSERT_NEAR(got[query * want.size() + i], want[i], 1e-4) << "world " << seed << " query " << query;
            }
        }
        w.batch.q_select.assign(w.batch.q_select.size(), 0);
        const std::vector<float> exact = attend_anew(w, 2, 2);
        w.params.select_cells = 0;
        EXPECT_EQ(exact, attend_anew(w, 2, 2)) << seed;
    }
}

TEST(select, rows_that_are_not_finite_stay_in_their_sequence) {
    const auto result = [](float odd) {
        world w = random_world(3);
        w.layer.type_k = w.layer.type_v = KVP_F16;
        w.params.softcap = 0;
        w.batch = {};
        std::mt19937 random(5);
        fill_rows(random, KVP_F16, w.layer.dk, w.layer.n_cells * w.layer.kv_heads, w.k);
        fill_rows(random, KVP_F16, w.layer.dv, w.layer.n_cells * w.layer.kv_heads, w.v);
        for (uint32_t c = 0; c < w.layer.n_cells; c++) {
            w.batch.pos.push_back((int32_t) c / 2);
            w.batch.seqs.push_back(1 + c % 2);
            if (c % 2 == 1) {
                const std::vector<float> row(w.layer.dk, odd);
                for (uint32_t h = 0; h < w.layer.kv_heads; h++) {
                    kvp_quantize_row(KVP_F16, row.data(), &w.k[c * w.row_k() + h * kvp_row_bytes(KVP_F16, w.layer.dk)], w.layer.dk);
                }
            }
        }
        w.batch.q_pos = {(int32_t) w.layer.n_cells, (int32_t) w.layer.n_cells};
        w.batch.q_seq = {0, 1};
        w.batch.q_select = {1, 1};
        w.q.assign(2 * w.params.heads * w.layer.dk, 0.25f);
        w.params.select_cells = 3 * w.page_cells;
        std::vector<float> out = attend_anew(w, 2, 2);
        out.resize(out.size() / 2);
        return out;
    };
    const std::vector<float> want = result(0.5f);
    for (float odd : {INFINITY, -INFINITY, NAN}) {
        EXPECT_EQ(result(odd), want) << odd;
    }
}

// expect_read_error attends with a pager of one page in memory from which nothing can be read once all rows are
// written. added: the op writes the batch's rows.
void expect_read_error(const world & w, bool added) {
    bool broken = false;
    small_pager pager(w.page_cells, 1, {w.layer}, [](void * user, int write, uint64_t, size_t) {
        return !write && *static_cast<bool *>(user) ? -EIO : 0;
    }, &broken);
    write_all(pager, w);
    broken = true;
    const kvp_batch_desc d = w.batch.desc();
    kvp_batch * b;
    kvp_op *    op;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    ASSERT_EQ(kvp_op_new(b, &w.params, &op), 0);
    ASSERT_NE(kvp_op_chooses(op), 0);
    op_args args(w.layer, w.params.heads, d.n_q, added);
    args.q = w.q;
    EXPECT_EQ(forward(op, args.io(w.layer, w.params.heads), 3), -EIO);
    EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
}

TEST(select, an_unreadable_page_is_an_error_and_gives_zeros) {
    expect_read_error(random_world(8), false);
}

TEST(select, a_row_that_cannot_be_stored_is_an_error_and_gives_zeros) {
    world w = random_world(8);
    w.batch.q_cell.assign(w.batch.q_pos.size(), 0);  // of a page that is not in memory
    expect_read_error(w, true);
}
