#include "cpu/panel.h"

#include <algorithm>
#include <cmath>

namespace kvp {

bool panel_sees(const panel_view & view, const tile_cells & cells) {
    return (view.seqs_or & cells.seqs_or) != 0 && cells.pos_max >= view.lo_min && cells.pos_min <= view.hi_max;
}

tile_floats convert_tile(const cpu_kernels & kernels, const tile_source & s, const tile_cells & cells, float * k, float * v) {
    kernels.to_floats(s.type_k, s.k, s.k_stride, s.live, s.n, s.dk, k);
    kernels.to_floats(s.type_v, s.v, s.v_stride, s.live, s.n, s.dv, v);
    tile_floats t;
    t.n    = s.n;
    t.dk   = s.dk;
    t.dv   = s.dv;
    t.k    = k;
    t.v    = v;
    t.pos  = cells.pos;
    t.seqs = cells.seqs;
    return t;
}

void attend_panel(const cpu_kernels & kernels, const kvp_params & params, const tile_floats & tile, const tile_cells & cells,
                  const panel_rows & rows, const panel_state & state) {
    const panel_view & view = rows.view;
    prefill_rows a;
    a.view    = &view;
    a.q       = rows.q;
    a.slopes  = params.max_bias > 0 ? rows.slopes : nullptr;
    a.softcap = params.softcap;
    a.masked  = (cells.seqs_and & view.seqs_or) != view.seqs_or || cells.pos_min < view.lo_max || cells.pos_max > view.hi_min;
    a.m       = state.m;
    a.l       = state.l;
    a.acc     = state.acc;
    a.scores  = rows.scores;
    kernels.attend_prefill(tile, a);
}

void clear_panel(const panel_state & state, uint32_t dv) {
    std::fill_n(state.m, PANEL_ROWS, -INFINITY);
    std::fill_n(state.l, PANEL_ROWS, 0.0f);
    std::fill_n(state.acc, (size_t) PANEL_ROWS * dv, 0.0f);
}

} // namespace kvp
