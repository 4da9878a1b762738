// A small attention op with f32 K and V in pages, and its answer in f64.
//
// Cell c is visible to query i when c <= q_pos[i] and the cell is used. Hidden cells hold
// NaN, so that a read of one shows.
#pragma once

#include <cstdint>
#include <vector>

#include "hybrid/hybrid.h"

struct case_shape {
    uint32_t pages      = 8;
    uint32_t page_cells = 4;
    uint32_t queries = 2, heads = 2;
    uint32_t dk = 4, dv = 3;
    uint32_t last_cells = 4;  // cells that the last page has
    bool     sinks      = false;
    size_t   v_align    = 0;        // of V in a page; 0: some odd place
};

struct attention_case {
    attention_case(const case_shape & shape, uint64_t seed);

    uint32_t rows() const { return shape.queries * shape.heads; }
    uint32_t cells_of(uint32_t page) const;
    kvp_page_ref    ref(uint32_t page) const;
    kvp::plan_page  plan_page(uint32_t page, kvp::residency where) const;
    kvp::hybrid_op  op(uint32_t slots) const;
    bool visible(uint32_t query, uint32_t cell) const;

    // What all rows see of one page, in f32, from K and V of that page.
    void attend(const kvp_page_ref & ref, const uint8_t * k, const uint8_t * v, const kvp_partial & out) const;

    // Largest difference to the answer.
    double error(const std::vector<float> & out) const;

    case_shape shape;
    size_t     row_k, row_v, v_offset, page_bytes;
    std::vector<std::vector<uint8_t>> contents;  // [pages][page_bytes]
    std::vector<float>   q;                      // [queries][heads][dk]
    std::vector<int32_t> q_pos;
    std::vector<uint8_t> used;                   // [cells]
    std::vector<float>   sinks;
    std::vector<double>  answer;                 // [queries][heads][dv]

private:
    void solve();
};
