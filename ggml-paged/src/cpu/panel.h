// The prefill kernel on a panel of rows and a converted tile.
#pragma once

#include "cpu/tile.h"

namespace kvp {

// A panel's running softmax in scratch memory.
struct panel_state {
    float * m;    // [PANEL_ROWS]
    float * l;    // [PANEL_ROWS]
    float * acc;  // [dv][PANEL_ROWS]

    explicit panel_state(float * at) : m(at), l(at + PANEL_ROWS), acc(at + 2 * PANEL_ROWS) {}

    static size_t floats(uint32_t dv) { return (size_t) PANEL_ROWS * (2 + (size_t) dv); }
};

// The rows of a panel, made by fill_panel and view_of.
struct panel_rows {
    const panel_view & view;
    const float *      q;       // [dk][PANEL_ROWS]
    const float *      slopes;  // [PANEL_ROWS]; only read with ALiBi
    float *            scores;  // scratch [TILE_CELLS][PANEL_ROWS]
};

// panel_sees returns whether any row of the panel may see a cell of the tile.
bool panel_sees(const panel_view & view, const tile_cells & cells);

// convert_tile converts the live cells of one K/V head to k, [TILE_CELLS][dk], and v,
// [TILE_CELLS][dv].
tile_floats convert_tile(const cpu_kernels & kernels, const tile_source & source, const tile_cells & cells, float * k, float * v);

// attend_panel requires that some row of the panel may see a cell of the tile.
void attend_panel(const cpu_kernels & kernels, const kvp_params & params, const tile_floats & tile, const tile_cells & cells,
                  const panel_rows & rows, const panel_state & state);

void clear_panel(const panel_state & state, uint32_t dv);

} // namespace kvp
