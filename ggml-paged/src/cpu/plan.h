// The steps of an op and the layout of its scratch memory: a function of sizes alone, so
// that the same op takes the same steps with any pages in memory and any number of
// threads.
//
//   spans   few queries: the cells are cut into spans of fixed length, any thread computes
//           any span, and the partial results are merged in order at the end
//   panels  many queries: each thread keeps some panels of rows of a K/V head and goes
//           through all cells with them
#pragma once

#include "batch/batch.h"
#include "cpu/kernels.h"

namespace kvp {

struct attention_shape {
    uint32_t n_q, heads, kv_heads, gqa, dk, dv;
    uint32_t rows;    // of a K/V head: n_q * gqa
    uint32_t panels;  // of a K/V head
};

attention_shape shape_of(const kvp_op & op);

// decode_kernel_pays returns whether converting a tile once for all rows costs more than
// it saves.
bool decode_kernel_pays(const attention_shape & shape);

// reserve_floats reserves n floats behind the end, aligned for any kernel, and returns their
// offset.
size_t reserve_floats(size_t & end, size_t n);

// align is the first address from memory on that suits the layout of reserve_floats.
constexpr size_t ALIGN_FLOATS = 16;
inline float * align(void * memory) {
    constexpr uintptr_t bytes = ALIGN_FLOATS * sizeof(float);
    return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(memory) + bytes - 1) / bytes * bytes);
}

struct attention_plan : attention_shape {
    uint32_t n_threads;
    bool     spans_in_use;
    bool     decode;  // spans, with the decode kernel

    uint32_t parts;      // spans of a page, or
    uint32_t span_pages; // pages of a span; one of both is 1
    uint32_t span_cells;
    uint32_t spans;

    // Offsets of floats in the scratch memory, from its first aligned address on.
    size_t q;        // decode: [kv_heads][rows][dk]; else [kv_heads][panels][dk][PANEL_ROWS]
    size_t slopes;   // decode: [heads]; else [kv_heads][panels][PANEL_ROWS]
    size_t views;    // panel_view [panels]
    size_t m, l;     // spans: [spans][kv_heads * rows]
    size_t acc;      // spans: [spans][kv_heads * rows][dv]
    size_t states;   // panels: [kv_heads][panels] of state_floats
    size_t threads;  // [n_threads] of thread_floats
    size_t state_floats, thread_floats;
    size_t bytes;

    // Offsets in a thread's part.
    size_t t_k, t_v, t_scores, t_mask, t_distance, t_states, t_row;
};

attention_plan plan_of(const kvp_op & op, const batch_data & data, uint32_t n_threads);

} // namespace kvp
