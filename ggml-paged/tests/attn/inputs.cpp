// Random inputs of a case: values, and the assignment of cells.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "case.h"

namespace {

using random_bits = std::mt19937_64;

// normals writes n values that are about normal, quickly: a sum of four uniform ones.
void normals(random_bits & random, float mean, float * out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint64_t x = random();
        const int32_t sum = (int32_t) (x & 0xffff) + (int32_t) (x >> 16 & 0xffff) + (int32_t) (x >> 32 & 0xffff) + (int32_t) (x >> 48);
        out[i] = mean + (sum - 131070) * (1.0f / 37837.0f);
    }
}

// poison fills a row with NaN, as far as its type has any.
void poison(int type, uint8_t * row, size_t bytes) {
    const uint16_t nan  = 0x7e00;
    const size_t   step = kvp_row_bytes(type, type == KVP_F16 ? 1 : 32);
    std::memset(row, 0x5a, bytes);
    for (size_t i = 0; i < bytes; i += step) {
        std::memcpy(row + i, &nan, sizeof nan);
    }
}

// place_cells chooses cells for the old tokens and the batch: in order, or scattered with
// holes. Returns the cells in the order of positions.
std::vector<uint32_t> place_cells(const test_case & c, uint32_t n_cells, random_bits & random) {
    std::vector<uint32_t> cells(n_cells);
    std::iota(cells.begin(), cells.end(), 0u);
    const bool scattered = c.mask == MASK_SEQUENCES || c.mask == MASK_EXCEPT || c.mask == MASK_NOTHING || c.seed % 4 == 1;
    if (scattered) {
        std::shuffle(cells.begin(), cells.end(), random);
    }
    cells.resize(c.tokens + c.n_q);
    return cells;
}

void place_one_sequence(const test_case & c, const std::vector<uint32_t> & cells, case_inputs & in) {
    for (uint32_t i = 0; i < cells.size(); i++) {
        in.pos[cells[i]]  = (int32_t) i;
        in.seqs[cells[i]] = 1ull << 5;
    }
    for (uint32_t i = 0; i < c.n_q; i++) {
        in.q_pos[i]  = (int32_t) (c.tokens + i);
        in.q_seq[i]  = 5;
        in.q_cell[i] = cells[c.tokens + i];
    }
}

// place_sequences deals the tokens to five sequences of which some share cells; the batch
// has queries of all of them.
void place_sequences(const test_case & c, const std::vector<uint32_t> & cells, case_inputs & in, random_bits & random) {
    const uint32_t which[5] = {0, 7, 31, 32, 63};
    int32_t next[5] = {0, 0, 0, 0, 0};
    for (uint32_t i = 0; i < cells.size(); i++) {
        const uint32_t s = random() % 5;
        uint64_t seqs = 1ull << which[s];
        int32_t  at   = next[s]++;
        if (i < c.tokens && random() % 8 == 0) {
            const uint32_t other = random() % 5;
            seqs |= 1ull << which[other];
            at = std::max(at, next[other]);
            next[s] = next[other] = at + 1;
        }
        in.pos[cells[i]]  = at;
        in.seqs[cells[i]] = seqs;
        if (i >= c.tokens) {
            in.q_pos[i - c.tokens]  = at;
            in.q_seq[i - c.tokens]  = which[s];
            in.q_cell[i - c.tokens] = cells[i];
        }
    }
}

// hide_queries leaves queries without any cell: all of them, or every third.
void hide_queries(const test_case & c, case_inputs & in) {
    for (uint32_t i = 0; i < c.n_q; i++) {
        if (c.seed % 2 == 0 || i % 3 == 0) {
            in.q_seq[i] = 40;
        }
    }
}

void set_mask(const test_case & c, case_inputs & in, random_bits & random) {
    in.window = c.mask == MASK_WINDOW ? (int32_t) (c.tokens / 3 + random() % 5) : INT32_MAX;
    in.chunk  = c.mask == MASK_CHUNK ? (int32_t) (c.tokens / 3 + 1 + random() % 50) : 0;
    if (c.mask == MASK_EXCEPT) {
        in.q_except.resize(c.n_q);
        for (auto & e : in.q_except) {
            e = random() % 2;
        }
        in.window = c.seed % 3 == 0 ? (int32_t) (c.tokens / 2 + 1) : INT32_MAX;
    }
    if (c.mask == MASK_NOTHING) {
        hide_queries(c, in);
    }
}

// fill_rows stores random rows in the cells of old tokens, poison in the rest.
void fill_rows(const test_case & c, case_inputs & in, random_bits & random) {
    const uint32_t h = c.kv_heads;
    const size_t   bytes_k = kvp_row_bytes(c.type_k, c.dk), bytes_v = kvp_row_bytes(c.type_v, c.dv);
    std::vector<bool> own(in.n_cells, false);
    for (uint32_t cell : in.q_cell) {
        own[cell] = true;
    }
    std::vector<float> row(std::max(c.dk, c.dv));
    in.k.resize(in.n_cells * h * bytes_k);
    in.v.resize(in.n_cells * h * bytes_v);
    for (size_t i = 0; i < (size_t) in.n_cells * h; i++) {
        if (in.seqs[i / h] == 0 || own[i / h]) {
            poison(c.type_k, &in.k[i * bytes_k], bytes_k);
            poison(c.type_v, &in.v[i * bytes_v], bytes_v);
            continue;
        }
        normals(random, 0, row.data(), c.dk);
        kvp_quantize_row(c.type_k, row.data(), &in.k[i * bytes_k], c.dk);
        normals(random, c.v_mean, row.data(), c.dv);
        for (uint32_t d = 0; d < c.dv; d++) {
            in.v_max = std::max(in.v_max, std::fabs(row[d]));
        }
        kvp_quantize_row(c.type_v, row.data(), &in.v[i * bytes_v], c.dv);
    }
}

} // namespace

kvp_batch_desc case_inputs::batch_desc() const {
    kvp_batch_desc d{};
    d.group    = layer.group;
    d.n_cells  = n_cells;
    d.pos      = pos.data();
    d.seqs     = seqs.data();
    d.n_q      = (uint32_t) q_pos.size();
    d.q_pos    = q_pos.data();
    d.q_seq    = q_seq.data();
    d.q_except = q_except.empty() ? nullptr : q_except.data();
    d.q_cell   = q_cell.data();
    d.window   = window;
    d.chunk    = chunk;
    return d;
}

case_inputs make_inputs(const test_case & c) {
    random_bits random(c.seed);
    case_inputs in{};
    const uint32_t used = c.tokens + c.n_q;
    in.n_cells = used + used / 8 + 5;  // some are never used
    in.layer   = {3, in.n_cells, c.kv_heads, c.dk, c.dv, c.type_k, c.type_v};
    in.params  = {0, c.heads, 1.0f / std::sqrt((float) c.dk), c.softcap ? 2.5f : 0.0f, c.alibi ? 8.0f : 0.0f, 0};
    in.pos.assign(in.n_cells, INT32_MIN);
    in.seqs.assign(in.n_cells, 0);
    in.q_pos.resize(c.n_q);
    in.q_seq.resize(c.n_q);
    in.q_cell.resize(c.n_q);
    const std::vector<uint32_t> cells = place_cells(c, in.n_cells, random);
    if (c.mask == MASK_SEQUENCES) {
        place_sequences(c, cells, in, random);
    } else {
        place_one_sequence(c, cells, in);
    }
    set_mask(c, in, random);
    in.q.resize((size_t) c.n_q * c.heads * c.dk);
    in.k_new.resize((size_t) c.n_q * c.kv_heads * c.dk);
    in.v_new.resize((size_t) c.n_q * c.kv_heads * c.dv);
    normals(random, 0, in.q.data(), in.q.size());
    normals(random, 0, in.k_new.data(), in.k_new.size());
    normals(random, c.v_mean, in.v_new.data(), in.v_new.size());
    if (c.sinks) {
        in.sinks.resize(c.heads);
        normals(random, 1, in.sinks.data(), in.sinks.size());
    }
    for (float x : in.v_new) {
        in.v_max = std::max(in.v_max, std::fabs(x));
    }
    fill_rows(c, in, random);
    return in;
}
