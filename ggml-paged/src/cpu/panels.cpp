// Many queries: each thread takes its panels through all pages, in the order of the list.
#include "cpu/forward.h"

namespace kvp {

tile_floats convert_page_tile(const pass & p, const kvp_page & page, uint32_t first, const tile_cells & cells, uint32_t kv_head) {
    const tile_source source = source_of(p.op.layer, p.data.cells->page_cells, page, first, cells, kv_head);
    return convert_tile(p.kernels, source, cells, p.mine() + p.plan.t_k, p.mine() + p.plan.t_v);
}

void attend_panel(const pass & p, const tile_floats & tile, const tile_cells & cells,
                  uint32_t kv_head, uint32_t panel, const panel_state & state) {
    const size_t at = (size_t) kv_head * p.plan.panels + panel;
    const panel_rows rows = {p.views()[panel], p.work + p.plan.q + at * p.plan.dk * PANEL_ROWS,
                             p.work + p.plan.slopes + at * PANEL_ROWS, p.mine() + p.plan.t_scores};
    attend_panel(p.kernels, p.op.params, tile, cells, rows, state);
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
                tile = convert_page_tile(p, page, first, cells, kv_head);
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
        clear_panel(panel_state(p.work + p.plan.states + i * p.plan.state_floats), p.plan.dv);
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
