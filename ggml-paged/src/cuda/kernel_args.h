// Arguments of the kernels, by value: plain structs that mean the same to the host, to
// CUDA and to the emulator. Pointers are to device memory.
#pragma once

#include <stdint.h>

namespace kvp_gpu {

// Head sizes (K, V) with attention kernels.
#define KVP_FOR_EACH_HEAD_DIM(X) \
    X(64, 64) X(80, 80) X(96, 96) X(128, 128) X(256, 256) X(512, 512) X(576, 512)

constexpr uint32_t launch_pages  = 32;     // pages of one launch
constexpr uint32_t decode_block  = 128;    // threads of a decode block, and cells of its tile
constexpr uint32_t prefill_block = 256;
constexpr uint32_t prefill_tile  = 64;     // cells
constexpr uint32_t merge_block   = 128;
constexpr uint32_t copy_block    = 128;
constexpr uint32_t quant_block   = 128;
// The least compute capability with tensor cores for halves, times ten.
#define KVP_MMA_CAPABILITY 75
constexpr uint32_t no_metadata   = 0xffffffffu;

// A prefill block has 16 times as many rows. Wide heads have fewer, so that acc fits
// registers.
constexpr uint32_t prefill_rows_per_thread(uint32_t dv) { return dv > 256 ? 2 : 4; }
constexpr uint32_t prefill_rows(uint32_t dv) { return 16 * prefill_rows_per_thread(dv); }

// A page in device memory. metadata is the index of its first cell in pos and seqs.
struct page_desc {
    const uint8_t * k;
    const uint8_t * v;
    uint32_t        metadata;
    uint32_t        cells;
    uint32_t        full;
    uint32_t        pad;
};

// The view of a query: cells of its sequence with lo <= pos <= hi. q_pos is for ALiBi.
struct query_desc {
    int32_t  lo, hi;
    int32_t  pos;
    uint32_t seq;
};

// (m, l, acc) per row (query * heads + head), in consecutive blocks of `rows`.
struct partials {
    float * m;
    float * l;
    float * acc;
};

struct attend_args {
    page_desc          pages[launch_pages];
    const int32_t    * pos;
    const uint64_t   * seqs;
    const query_desc * queries;
    const float      * q;              // element (i, h, d) at i*q_stride + h*q_head_stride + d
    const float      * slopes;         // per head, NULL without ALiBi
    partials           out;            // one block per split, or the running state
    int64_t            q_stride, q_head_stride;  // in floats
    uint32_t           n_q, heads, kv_heads, group;
    uint32_t           type_k, type_v;
    uint32_t           row_k, row_v;   // bytes of the row of one head
    uint32_t           splits, span;   // splits of a page, cells of a split
    uint32_t           resume;         // 1: one split, folded into the partials in out
    float              scale, softcap;
};

// merge folds n partials into a state, in order. A partial has step blocks of rows to the next one. There
// are several states, each with its partials: both begin apart blocks behind those of the state before.
struct merge_args {
    partials from, state;
    uint32_t n, rows, dv;
    uint32_t step, states, apart;
};

struct finish_args {
    partials      state;
    const float * sinks;  // per head or NULL
    float       * out;    // [rows][dv]
    uint32_t      rows, heads, dv;
};

// quantize writes rows [n][heads][row] of a type from f32.
struct quantize_args {
    const float * src;
    uint8_t     * dst;
    int64_t       row_stride, head_stride;  // in floats
    uint32_t      n, heads, elements, type;
    uint32_t      row;                      // bytes
};

// patch puts the new rows of a page into their places in a copy of the page.
struct patch_args {
    const uint8_t  * new_k;
    const uint8_t  * new_v;
    const uint32_t * cells;                 // absolute, one per new row
    uint8_t        * k;
    uint8_t        * v;
    uint32_t         n, first_cell, page_cells;
    uint32_t         cell_k, cell_v;        // bytes of all heads' rows of a cell
};

} // namespace kvp_gpu
