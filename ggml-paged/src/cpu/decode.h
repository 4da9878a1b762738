// The decode kernel on a tile: all rows of all K/V heads.
#pragma once

#include "cpu/tile.h"

namespace kvp {

// The arrays of the rows, grouped by K/V head: see decode_rows.
struct decode_state {
    const float * q;       // [kv_heads][rows][dk], scaled
    const float * slopes;  // [heads]; only read with ALiBi
    float *       m;       // [kv_heads][rows]
    float *       l;       // [kv_heads][rows]
    float *       acc;     // [kv_heads][rows][dv]
    float *       scores;    // scratch [DECODE_SCORE_ROWS][TILE_CELLS]
    float *       v_floats;  // scratch [V_CHUNK_CELLS][dv]
    float *       mask;      // scratch [n_q][TILE_CELLS]
    float *       distance;  // scratch [n_q][TILE_CELLS]
};

// attend_tile_decode attends to the tile that begins at cell first of the page.
void attend_tile_decode(const cpu_kernels & kernels, const kvp_op & op, const batch_data & data, const kvp_page & page,
                        uint32_t first, const tile_cells & cells, const decode_state & state);

} // namespace kvp
