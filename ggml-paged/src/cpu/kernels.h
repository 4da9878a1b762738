// Kernels of the CPU backend, as a table per instruction set.
//
// Both kinds attend rows (query, head of the group) to a tile: up to TILE_CELLS cells of
// one K/V head. Only live cells are read: cells that any query of the batch sees. The
// kernels keep a running softmax per row: m, the largest score; l, the sum of exp(score -
// m); acc, the sum of exp(score - m) * V.
//
//   decode   few rows, bound by memory: vector lanes are elements of a head. K and V are
//            converted on the fly, up to DECODE_SCORE_ROWS rows share a load.
//   prefill  many rows, bound by arithmetic: vector lanes are rows. K and V are converted
//            to floats once per tile, and their elements are broadcast to the rows of a
//            panel.
//
// The number of rows per K/V head chooses the kernel (decode_kernel_pays): one query may
// have enough heads for the prefill kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvp {

constexpr uint32_t TILE_CELLS = 64;

// Rows of a panel of the prefill kernel: the width of its arrays. Rows are padded to this
// width with rows that see no cell.
constexpr uint32_t PANEL_ROWS = 48;

// The decode kernel converts V of V_CHUNK_CELLS cells at a time, and scores at most
// DECODE_SCORE_ROWS rows together.
constexpr uint32_t V_CHUNK_CELLS     = 16;
constexpr uint32_t DECODE_SCORE_ROWS = 8;

// Rows of K and V of one head. Cell i of the tile is at k + live[i] * k_stride.
struct tile_source {
    int             type_k, type_v;
    uint32_t        dk, dv;
    const uint8_t * k;
    const uint8_t * v;
    size_t          k_stride, v_stride;
    ptrdiff_t       k_ahead, v_ahead;  // from a row to the row wanted after this tile; 0: none
    const uint8_t * live;  // [TILE_CELLS], ascending, padded with the last one
    uint32_t        n;     // live cells, at least 1
};

struct decode_rows {
    uint32_t      rows;     // of the K/V head: n_q * gqa, query by query
    uint32_t      gqa;
    const float * q;        // [rows][dk], scaled
    float         softcap;  // 0: none
    const float * mask;     // [n_q][TILE_CELLS], -inf where a query does not see a cell; NULL: all see all
    const float * distance; // [n_q][TILE_CELLS], position of the cell from the query; NULL: no ALiBi
    const float * slopes;   // [gqa] of ALiBi
    float *       m;        // [rows]
    float *       l;        // [rows]
    float *       acc;      // [rows][dv]
    float *       scores;   // scratch [DECODE_SCORE_ROWS][TILE_CELLS]
    float *       v_floats; // scratch [V_CHUNK_CELLS][dv]
};

// The views of a panel's rows, and where the rows are.
struct panel_view {
    uint32_t rows;
    int32_t  lo[PANEL_ROWS], hi[PANEL_ROWS], q_pos[PANEL_ROWS];
    uint64_t seq_bit[PANEL_ROWS];
    uint64_t seqs_or;
    int32_t  lo_min, lo_max, hi_min, hi_max;
};

// Views are stored in arrays of floats.
constexpr size_t VIEW_FLOATS = sizeof(panel_view) / sizeof(float);
static_assert(sizeof(panel_view) % sizeof(float) == 0, "a panel_view is not a whole number of floats");

struct prefill_rows {
    const panel_view * view;
    const float *      q;       // [dk][PANEL_ROWS], scaled
    const float *      slopes;  // [PANEL_ROWS]; NULL: no ALiBi
    float              softcap; // 0: none
    bool               masked;  // a row does not see some cell
    float *            m;       // [PANEL_ROWS]
    float *            l;       // [PANEL_ROWS]
    float *            acc;     // [dv][PANEL_ROWS]
    float *            scores;  // scratch [TILE_CELLS][PANEL_ROWS]
};

// A tile whose live cells were converted.
struct tile_floats {
    uint32_t         n;
    uint32_t         dk, dv;
    const float *    k;  // [n][dk]
    const float *    v;  // [n][dv]
    const int32_t  * pos;
    const uint64_t * seqs;
};

struct cpu_kernels {
    const char * name;
    void (*attend_decode)(const tile_source & tile, const decode_rows & rows);
    void (*attend_prefill)(const tile_floats & tile, const prefill_rows & rows);

    // to_floats converts n rows of dim elements.
    void (*to_floats)(int type, const uint8_t * rows, size_t stride, const uint8_t * live, uint32_t n,
                      uint32_t dim, float * out);

    // merge adds b, weighted, to a: acc_a = acc_a * wa + acc_b * wb.
    void (*merge)(float * a, float wa, const float * b, float wb, uint32_t n);
};

// kernels_in_use is the table of this machine's best instruction set, or of the one named
// in KVP_ISA.
const cpu_kernels & kernels_in_use();

// One per kernels_*.cpp; NULL if the compiler does not target that machine.
const cpu_kernels * kernels_avx512();
const cpu_kernels * kernels_avx2();
const cpu_kernels * kernels_neon();
const cpu_kernels * kernels_generic();

} // namespace kvp
