// Few rows: all of them, of all K/V heads, attended to a tile.
#pragma once

#include "cpu/tile.h"

namespace kvp {

// Where the rows are, those of a K/V head together: see few_rows.
struct few_state {
    const float * q;       // [kv_heads][rows][dk], scaled
    const float * slopes;  // [heads]; only read with ALiBi
    float *       m;       // [kv_heads][rows]
    float *       l;       // [kv_heads][rows]
    float *       acc;     // [kv_heads][rows][dv]
    float *       scores;    // scratch [FEW_SCORE_ROWS][TILE_CELLS]
    float *       v_floats;  // scratch [V_CHUNK_CELLS][dv]
    float *       hide;      // scratch [n_q][TILE_CELLS]
    float *       distance;  // scratch [n_q][TILE_CELLS]
};

// attend_tile_few attends to the tile that begins at cell first of the page.
void attend_tile_few(const cpu_kernels & kernels, const kvp_op & op, const batch_data & data, const kvp_page & page,
                     uint32_t first, const tile_cells & cells, const few_state & state);

} // namespace kvp
