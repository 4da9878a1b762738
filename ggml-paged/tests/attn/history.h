// Random histories of a runner's operations on a cache, with a few frames of memory,
// against attention in f64 over a plain array: no history leads to reading a stale row.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "fixture.h"
#include "reference.h"

class history {
public:
    static constexpr uint32_t PAGE = 16, PAGES = 14, CELLS = PAGE * PAGES, LAYERS = 2, SLOTS = 4, HEADS = 6;

    // compute is the tested function; 0 or a negative errno.
    using compute_op = std::function<int(kvp_op * op, const kvp_io & io)>;

    history(uint32_t seed, const kvp_layer_desc & of, uint32_t frames, compute_op by)
        : pager(PAGE, frames, {of, of}), compute(std::move(by)), random(seed), layer(of) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            k[l].resize(CELLS * kvp_layer_row_k(pager.p, l));
            v[l].resize(CELLS * kvp_layer_row_v(pager.p, l));
        }
    }

    static kvp_layer_desc layer_of(int type_k, uint32_t dv) { return {0, CELLS, 2, 64, dv, type_k, KVP_F16}; }

    void step() {
        switch (below(10)) {
            case 0:  remove_tail(); break;
            case 1:  copy_prefix(); break;
            case 2:  shift(); break;
            case 3:  restore(); break;
            default: put(); break;
        }
    }

    small_pager pager;
    double      worst = 0;  // error so far, in units of the largest V
    uint32_t    select_cells = 0;  // of ops; results are compared with those of a pager without a history
    uint32_t    narrowed = 0;      // queries so far that chose

private:
    compute_op     compute;
    std::mt19937   random;
    kvp_layer_desc layer;
    // The model: the meaning of each cell, and its stored rows, per layer.
    std::vector<int32_t>  pos  = std::vector<int32_t>(CELLS, -1);
    std::vector<uint64_t> seqs = std::vector<uint64_t>(CELLS, 0);
    std::vector<uint8_t>  k[LAYERS], v[LAYERS];
    int32_t next[SLOTS] = {};

    uint32_t below(uint32_t n) { return (uint32_t) (random() % n); }

    std::vector<float> floats(size_t n) {
        std::vector<float> out(n);
        for (float & x : out) {
            x = (int) below(2001) / 500.0f - 2.0f;
        }
        return out;
    }

    std::vector<uint32_t> free_cells(uint32_t n) {
        std::vector<uint32_t> cells;
        for (uint32_t c = 0; c < CELLS; c++) {
            if (seqs[c] == 0) {
                cells.push_back(c);
            }
        }
        if (below(2)) {
            std::shuffle(cells.begin(), cells.end(), random);
        }
        cells.resize(std::min<size_t>(cells.size(), n));
        return cells;
    }

    void store(uint32_t l, uint32_t cell, const float * row_k, const float * row_v) {
        const size_t bytes_k = kvp_layer_row_k(pager.p, l) / layer.kv_heads, bytes_v = kvp_layer_row_v(pager.p, l) / layer.kv_heads;
        for (uint32_t h = 0; h < layer.kv_heads; h++) {
            kvp_quantize_row(layer.type_k, row_k + h * layer.dk, &k[l][(cell * layer.kv_heads + h) * bytes_k], layer.dk);
            kvp_quantize_row(layer.type_v, row_v + h * layer.dv, &v[l][(cell * layer.kv_heads + h) * bytes_v], layer.dv);
        }
    }

    void check(uint32_t l, const kvp_batch_desc & d, const kvp_params & params, const op_args & args) {
        const reference_cells cells = {CELLS, pos.data(), seqs.data(), k[l].data(), v[l].data()};
        for (uint32_t i = 0; i < d.n_q; i++) {
            const reference_query q = {d.q_pos[i], d.q_seq[i], d.q_except && d.q_except[i], &args.q[(size_t) i * HEADS * layer.dk]};
            const uint32_t head = below(HEADS);
            const auto want = reference_row(layer, params, d, cells, q, head, nullptr);
            for (uint32_t e = 0; e < layer.dv; e++) {
                const double error = std::fabs(args.out[((size_t) i * HEADS + head) * layer.dv + e] - want[e]) / 2.0;
                worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
            }
        }
        ASSERT_LE(worst, 1e-4);
    }

    // check_choices compares an op's result, to the bit, with that of a pager that has the rows and
    // no history, and with those of some of its queries alone.
    void check_choices(uint32_t l, const batch_args & a, const kvp_params & params, const op_args & args) {
        small_pager anew(PAGE, 1 + below(PAGES), {layer});
        std::vector<uint32_t> all(CELLS);
        std::iota(all.begin(), all.end(), 0u);
        ASSERT_EQ(kvp_rows_write(anew.p, 0, all.data(), CELLS, k[l].data(), v[l].data()), 0) << kvp_last_error();
        EXPECT_EQ(attend_anew(anew, a, params, args.q, args.sinks), args.out);
        for (uint32_t i = below(4); i < a.q_pos.size(); i += 1 + below(8)) {
            batch_args one = a;
            one.q_pos = {a.q_pos[i]}, one.q_seq = {a.q_seq[i]}, one.q_select = {a.q_select[i]}, one.q_cell.clear();
            if (!a.q_except.empty()) {
                one.q_except = {a.q_except[i]};
            }
            const size_t row = HEADS * layer.dk, out = HEADS * layer.dv;
            const std::vector<float> q(args.q.begin() + i * row, args.q.begin() + (i + 1) * row);
            kvp_select_stats before, after;
            kvp_pager_select_stats(anew.p, &before);
            const std::vector<float> got = attend_anew(anew, one, params, q, args.sinks);
            kvp_pager_select_stats(anew.p, &after);
            if (after.seen_blocks > before.seen_blocks) {
                narrowed++;
                ASSERT_EQ(got, std::vector<float>(args.out.begin() + i * out, args.out.begin() + (i + 1) * out)) << "query " << i;
            }
        }
    }

    std::vector<float> attend_anew(small_pager & anew, const batch_args & a, kvp_params params, const std::vector<float> & q, const std::vector<float> & sinks) {
        const kvp_batch_desc d = a.desc();
        kvp_batch * b;
        kvp_op *    op;
        params.layer = 0;
        EXPECT_EQ(kvp_batch_begin(anew.p, &d, &b), 0) << kvp_last_error();
        EXPECT_EQ(kvp_op_new(b, &params, &op), 0) << kvp_last_error();
        op_args args(layer, HEADS, d.n_q, false);
        args.q     = q;
        args.sinks = sinks;
        EXPECT_EQ(compute(op, args.io(layer, HEADS)), 0) << kvp_last_error();
        return args.out;
    }

    // describe_cells gives a batch all cells, or as a runner does, the pages that have cells of
    // its slots and no others, the last one as far as it is used.
    void describe_cells(batch_args & a) {
        uint64_t slots = 0;
        for (uint32_t slot : a.q_seq) {
            slots |= 1ull << slot;
        }
        const auto is_wanted = [&](uint64_t s) { return (s & slots) != 0; };
        const bool     all   = below(2);
        const uint32_t first = all ? 0 : (uint32_t) (std::find_if(seqs.begin(), seqs.end(), is_wanted) - seqs.begin()) / PAGE * PAGE;
        const uint32_t end   = all ? CELLS : (uint32_t) (seqs.rend() - std::find_if(seqs.rbegin(), seqs.rend(), is_wanted));
        a.first_cell = first;
        a.pos.assign(&pos[first], &pos[first] + (end - first));
        a.seqs.assign(&seqs[first], &seqs[first] + (end - first));
    }

    // put runs a batch of several slots through both layers.
    void put() {
        const std::vector<uint32_t> cells = free_cells(below(3) ? 1 + below(3) : 1 + below(30));
        if (cells.empty()) {
            return;
        }
        batch_args a;
        const uint32_t slots = 1 + below(SLOTS), first = below(SLOTS);
        for (uint32_t i = 0; i < cells.size(); i++) {
            const uint32_t slot = (first + i % slots) % SLOTS;
            a.q_cell.push_back(cells[i]);
            a.q_seq.push_back(slot);
            a.q_pos.push_back(next[slot]);
            pos[cells[i]]  = next[slot]++;
            seqs[cells[i]] = 1ull << slot;
        }
        describe_cells(a);
        a.window = below(3) ? INT32_MAX : 1 + (int32_t) below(40);
        kvp_batch * b;
        if (select_cells > 0) {
            mark(a);
        }
        const kvp_batch_desc d = a.desc();
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
        if (select_cells > 0 && below(3) == 0) {
            a.q_except.resize(d.n_q);
            std::generate(a.q_except.begin(), a.q_except.end(), [&] { return (uint8_t) below(2); });
            ASSERT_EQ(kvp_batch_except(b, a.q_except.data(), &b), 0) << kvp_last_error();
        }
        for (uint32_t l = 0; l < LAYERS; l++) {
            const kvp_params params = {l, HEADS, 0.125f, select_cells > 0 && below(2) ? 5.0f : 0.0f, 0, select_cells};
            kvp_op * op;
            ASSERT_EQ(kvp_op_new(b, &params, &op), 0) << kvp_last_error();
            op_args args(layer, HEADS, d.n_q, true);
            args.q     = floats(args.q.size());
            args.k_new = floats(args.k_new.size());
            args.v_new = floats(args.v_new.size());
            for (uint32_t i = 0; i < d.n_q; i++) {
                store(l, cells[i], &args.k_new[i * layer.kv_heads * layer.dk], &args.v_new[i * layer.kv_heads * layer.dv]);
            }
            if (select_cells > 0 && below(2)) {
                args.sinks = floats(HEADS);
            }
            ASSERT_EQ(compute(op, args.io(layer, HEADS)), 0) << kvp_last_error();
            if (select_cells > 0) {
                check_choices(l, a, params, args);
            } else {
                check(l, d, params, args);
            }
        }
    }

    void mark(batch_args & a) {
        for (uint32_t i = 0; i < a.q_pos.size(); i++) {
            a.q_select.push_back(below(3) != 0);
        }
        if (below(4) == 0) {
            a.chunk = 1 + (int32_t) below(200);
        }
    }

    // leave takes the cells of a slot with positions from a to b out of it.
    void leave(uint32_t slot, int32_t from, int32_t to) {
        for (uint32_t c = 0; c < CELLS; c++) {
            if (pos[c] >= from && pos[c] < to) {
                seqs[c] &= ~(1ull << slot);
            }
        }
    }

    void remove_tail() {
        const uint32_t slot = below(SLOTS);
        const int32_t  from = (int32_t) below((uint32_t) next[slot] + 1);
        leave(slot, from, INT32_MAX);
        next[slot] = from;
        drop_free_pages();
    }

    void drop_free_pages() {
        for (uint32_t p = 0; p < PAGES; p++) {
            const bool used = std::any_of(&seqs[p * PAGE], &seqs[p * PAGE] + PAGE, [](uint64_t s) { return s != 0; });
            if (!used && below(2)) {
                kvp_drop(pager.p, 0, p);
                kvp_bounds_drop(pager.p, 0, p);
            }
        }
    }

    void copy_prefix() {
        const uint32_t from = below(SLOTS), to = (from + 1 + below(SLOTS - 1)) % SLOTS;
        const int32_t  n    = (int32_t) below((uint32_t) next[from] + 1);
        leave(to, 0, INT32_MAX);
        for (uint32_t c = 0; c < CELLS; c++) {
            if ((seqs[c] >> from & 1) && pos[c] < n) {
                seqs[c] |= 1ull << to;
            }
        }
        next[to] = n;
    }

    // shift takes positions away from the front of a slot and moves the rest up. Quarter
    // turns within a block are exact in the types used, whenever they are applied.
    void shift() {
        const uint32_t slot = below(SLOTS);
        for (uint32_t c = 0; c < CELLS; c++) {
            if ((seqs[c] >> slot & 1) && seqs[c] != 1ull << slot) {
                return;  // a runner does not shift cells that others share either
            }
        }
        const int32_t n = (int32_t) below((uint32_t) next[slot] / 2 + 1);
        leave(slot, 0, n);
        next[slot] -= n;
        for (uint32_t p = 0; p < PAGES; p++) {
            uint64_t moved = 0;
            for (uint32_t c = 0; c < PAGE; c++) {
                if (seqs[p * PAGE + c] >> slot & 1) {
                    moved |= 1ull << c;
                    pos[p * PAGE + c] -= n;
                }
            }
            for (uint32_t l = 0; l < LAYERS && moved != 0; l++) {
                turn(l, p, moved);
            }
        }
    }

    void turn(uint32_t l, uint32_t page, uint64_t cells) {
        const kvp_plane planes[2] = {{2, 3, {0, -1, 1, 0}}, {40, 45, {0, 1, -1, 0}}};
        ASSERT_EQ(kvp_rotate(pager.p, l, page, &cells, planes, 2), 0) << kvp_last_error();
        std::vector<float> row(layer.dk);
        const size_t bytes = kvp_row_bytes(layer.type_k, layer.dk);
        for (uint32_t i = 0; i < PAGE * layer.kv_heads; i++) {
            if (!(cells >> i / layer.kv_heads & 1)) {
                continue;
            }
            uint8_t * at = &k[l][(page * PAGE * layer.kv_heads + i) * bytes];
            kvp_dequantize_row(layer.type_k, at, row.data(), layer.dk);
            for (const kvp_plane & p : planes) {
                const float a = row[p.a], b = row[p.b];
                row[p.a] = p.m[0] * a + p.m[1] * b;
                row[p.b] = p.m[2] * a + p.m[3] * b;
            }
            kvp_quantize_row(layer.type_k, row.data(), at, layer.dk);
        }
    }

    // restore writes stored rows back into free cells, as from a tier below.
    void restore() {
        const uint32_t slot = below(SLOTS);
        const std::vector<uint32_t> cells = free_cells(1 + below(40));
        if (cells.empty()) {
            return;
        }
        for (uint32_t l = 0; l < LAYERS; l++) {
            const size_t row_k = kvp_layer_row_k(pager.p, l), row_v = kvp_layer_row_v(pager.p, l);
            std::vector<uint8_t> rows_k, rows_v;
            for (uint32_t c : cells) {
                store(l, c, floats(layer.kv_heads * layer.dk).data(), floats(layer.kv_heads * layer.dv).data());
                rows_k.insert(rows_k.end(), &k[l][c * row_k], &k[l][c * row_k] + row_k);
                rows_v.insert(rows_v.end(), &v[l][c * row_v], &v[l][c * row_v] + row_v);
            }
            ASSERT_EQ(kvp_rows_write(pager.p, l, cells.data(), (uint32_t) cells.size(), rows_k.data(), rows_v.data()), 0) << kvp_last_error();
        }
        for (uint32_t c : cells) {
            pos[c]  = next[slot]++;
            seqs[c] = 1ull << slot;
        }
    }
};
