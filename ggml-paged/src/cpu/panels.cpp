// Many queries: each thread takes its panels through all pages, in the order of the list.
#include <algorithm>
#include <cmath>

#include "cpu/forward.h"

namespace kvp {

tile_source source_of(const pass & p, const kvp_page & page, uint32_t first, const tile_cells & cells, uint32_t kv_head) {
    const kvp_layer_desc & layer = p.op.layer;
    const size_t head_k = kvp_row_bytes(layer.type_k, layer.dk);
    const size_t head_v = kvp_row_bytes(layer.type_v, layer.dv);
    tile_source s;
    s.type_k   = layer.type_k;
    s.type_v   = layer.type_v;
    s.dk       = layer.dk;
    s.dv       = layer.dv;
    s.k_stride = head_k * layer.kv_heads;
    s.v_stride = head_v * layer.kv_heads;
    s.k        = page.k + first * s.k_stride + kv_head * head_k;
    s.v        = page.v + first * s.v_stride + kv_head * head_v;
    // After the last head comes the first one of the next tile, in the same page.
    const bool last = kv_head + 1 == layer.kv_heads;
    const bool none = last && first + TILE_CELLS >= p.data.cells->page_cells;
    const ptrdiff_t heads_back = (ptrdiff_t) layer.kv_heads - 1;
    s.k_ahead  = none ? 0 : last ? (ptrdiff_t) (TILE_CELLS * s.k_stride) - heads_back * (ptrdiff_t) head_k : (ptrdiff_t) head_k;
    s.v_ahead  = none ? 0 : last ? (ptrdiff_t) (TILE_CELLS * s.v_stride) - heads_back * (ptrdiff_t) head_v : (ptrdiff_t) head_v;
    s.live     = cells.live;
    s.n        = cells.n;
    return s;
}

bool panel_sees(const panel_view & view, const tile_cells & cells) {
    return (view.seqs_or & cells.seqs_or) != 0 && cells.pos_max >= view.lo_min && cells.pos_min <= view.hi_max;
}

tile_floats convert_tile(const pass & p, const tile_source & s, const tile_cells & cells) {
    float * k = p.mine() + p.plan.t_k;
    float * v = p.mine() + p.plan.t_v;
    p.kernels.to_floats(s.type_k, s.k, s.k_stride, s.live, s.n, s.dk, k);
    p.kernels.to_floats(s.type_v, s.v, s.v_stride, s.live, s.n, s.dv, v);
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

void attend_panel(const pass & p, const tile_floats & tile, const tile_cells & cells,
                  uint32_t kv_head, uint32_t panel, const panel_state & state) {
    const panel_view & view = p.views()[panel];
    const size_t at = (size_t) kv_head * p.plan.panels + panel;
    many_rows a;
    a.view    = &view;
    a.q       = p.work + p.plan.q + at * p.plan.dk * PANEL_ROWS;
    a.slopes  = p.op.params.max_bias > 0 ? p.work + p.plan.slopes + at * PANEL_ROWS : nullptr;
    a.softcap = p.op.params.softcap;
    a.mixed   = (cells.seqs_and & view.seqs_or) != view.seqs_or || cells.pos_min < view.lo_max || cells.pos_max > view.hi_min;
    a.m       = state.m;
    a.l       = state.l;
    a.acc     = state.acc;
    a.scores  = p.mine() + p.plan.t_scores;
    p.kernels.attend_many(tile, a);
}

void clear_panel(const pass & p, const panel_state & state) {
    std::fill_n(state.m, PANEL_ROWS, -INFINITY);
    std::fill_n(state.l, PANEL_ROWS, 0.0f);
    std::fill_n(state.acc, (size_t) PANEL_ROWS * p.plan.dv, 0.0f);
}

namespace {

// attend_page takes panels [begin, end), counted over K/V heads, through one page. A tile
// is converted once for all panels of a head.
void attend_page(const pass & p, uint32_t page_number, const kvp_page & page, uint32_t begin, uint32_t end) {
    const uint32_t relative = page_number - p.data.cells->first_page;
    const uint32_t n_cells  = p.data.cells->page_cells;
    tile_cells cells;
    for (uint32_t first = 0; first < n_cells; first += TILE_CELLS) {
        if (!collect_tile(p.data, relative, first, n_cells, cells)) {
            continue;
        }
        tile_floats tile{};
        uint32_t converted = UINT32_MAX;
        for (uint32_t i = begin; i < end; i++) {
            const uint32_t kv_head = i / p.plan.panels;
            const uint32_t panel   = i % p.plan.panels;
            if (!panel_sees(p.views()[panel], cells)) {
                continue;
            }
            if (converted != kv_head) {
                tile = convert_tile(p, source_of(p, page, first, cells, kv_head), cells);
                converted = kv_head;
            }
            attend_panel(p, tile, cells, kv_head, panel, panel_state(p.work + p.plan.states + i * p.plan.state_floats));
        }
    }
}

} // namespace

void attend_panels(const pass & p) {
    const uint32_t n     = p.plan.kv_heads * p.plan.panels;
    const uint32_t begin = p.share_begin(n), end = p.share_end(n);
    for (uint32_t i = begin; i < end; i++) {
        clear_panel(p, panel_state(p.work + p.plan.states + i * p.plan.state_floats));
    }
    for (uint32_t i = 0; i < p.data.list.size(); i++) {
        kvp_page page;
        const int error = kvp_scan_wait(p.r.scan, i, &page);
        if (error != 0) {
            p.r.fail(error, kvp_last_error());
            return;
        }
        attend_page(p, p.data.list[i], page, begin, end);
        kvp_scan_release(p.r.scan, i);
    }
}

} // namespace kvp
