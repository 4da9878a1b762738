// Few queries: the cells are cut into spans, which any thread computes in any order.
#include <algorithm>
#include <cmath>

#include "cpu/decode.h"
#include "cpu/forward.h"

namespace kvp {

namespace {

panel_state own_state(const pass & p, uint32_t i) {
    return panel_state(p.mine() + p.plan.t_states + i * p.plan.state_floats);
}

void begin_span(const pass & p, uint32_t span) {
    const size_t rows = (size_t) p.plan.kv_heads * p.plan.rows;
    if (p.plan.decode) {
        std::fill_n(p.work + p.plan.m + span * rows, rows, -INFINITY);
        std::fill_n(p.work + p.plan.l + span * rows, rows, 0.0f);
        std::fill_n(p.work + p.plan.acc + span * rows * p.plan.dv, rows * p.plan.dv, 0.0f);
        return;
    }
    for (uint32_t i = 0; i < p.plan.kv_heads * p.plan.panels; i++) {
        clear_panel(own_state(p, i), p.plan.dv);
    }
}

// end_span puts the sums of panels, lane by lane, into the span's place row by row.
void end_span(const pass & p, uint32_t span) {
    const attention_plan & plan = p.plan;
    const size_t rows = (size_t) plan.kv_heads * plan.rows;
    for (uint32_t i = 0; i < plan.kv_heads * plan.panels && !plan.decode; i++) {
        const panel_state state = own_state(p, i);
        const uint32_t    panel = i % plan.panels;
        const size_t      row   = span * rows + i / plan.panels * (size_t) plan.rows + panel * PANEL_ROWS;
        const uint32_t    n     = p.views()[panel].rows;
        std::copy_n(state.m, n, p.work + plan.m + row);
        std::copy_n(state.l, n, p.work + plan.l + row);
        for (uint32_t r = 0; r < n; r++) {
            float * out = p.work + plan.acc + (row + r) * plan.dv;
            for (uint32_t d = 0; d < plan.dv; d++) {
                out[d] = state.acc[d * (size_t) PANEL_ROWS + r];
            }
        }
    }
}

decode_state decode_state_of(const pass & p, uint32_t span) {
    const attention_plan & plan = p.plan;
    const size_t row = (size_t) span * plan.kv_heads * plan.rows;
    float * mine = p.mine();
    decode_state s;
    s.q        = p.work + plan.q;
    s.slopes   = p.work + plan.slopes;
    s.m        = p.work + plan.m + row;
    s.l        = p.work + plan.l + row;
    s.acc      = p.work + plan.acc + row * plan.dv;
    s.scores   = mine + plan.t_scores;
    s.v_floats = mine + plan.t_v;
    s.mask     = mine + plan.t_mask;
    s.distance = mine + plan.t_distance;
    return s;
}

void attend_tile_prefill(const pass & p, const kvp_page & page, uint32_t first, const tile_cells & cells) {
    for (uint32_t h = 0; h < p.plan.kv_heads; h++) {
        const tile_floats tile = convert_page_tile(p, page, first, cells, h);
        for (uint32_t panel = 0; panel < p.plan.panels; panel++) {
            if (panel_sees(p.views()[panel], cells)) {
                attend_panel(p, tile, cells, h, panel, own_state(p, h * p.plan.panels + panel));
            }
        }
    }
}

// add_cells attends to cells [begin, end) of a page.
void add_cells(const pass & p, uint32_t span, uint32_t page_number, const kvp_page & page, uint32_t begin, uint32_t end) {
    const uint32_t relative = page_number - p.data.cells->first_page;
    tile_cells cells;
    for (uint32_t first = begin; first < end; first += TILE_CELLS) {
        if (!collect_tile(p.data, relative, first, end, cells)) {
            continue;
        }
        if (p.plan.decode) {
            attend_tile_decode(p.kernels, p.op, p.data, page, first, cells, decode_state_of(p, span));
        } else {
            attend_tile_prefill(p, page, first, cells);
        }
    }
}

// attend_parts computes spans that are a page or a part of a page, as pages become ready.
void attend_parts(const pass & p) {
    for (;;) {
        uint32_t index, part;
        kvp_page page;
        const int got = kvp_scan_claim(p.r.scan, &index, &part, &page);
        if (got <= 0) {
            if (got < 0) {
                p.r.fail(got, kvp_last_error());
            }
            return;
        }
        const uint32_t span = index * p.plan.parts + part;
        begin_span(p, span);
        add_cells(p, span, p.data.list[index], page, part * p.plan.span_cells, (part + 1) * p.plan.span_cells);
        end_span(p, span);
        kvp_scan_release(p.r.scan, index);
    }
}

// attend_page_groups computes spans of several pages. Every thread visits all pages in
// order, and computes only the pages of the spans that it takes.
void attend_page_groups(const pass & p) {
    const uint32_t n = (uint32_t) p.data.list.size();
    uint32_t span = p.r.next_span.fetch_add(1);
    for (uint32_t i = 0; i < n; i++) {
        kvp_page page;
        const int error = kvp_scan_wait(p.r.scan, i, &page);
        if (error != 0) {
            p.r.fail(error, kvp_last_error());
            return;
        }
        const uint32_t begin = span * p.plan.span_pages;
        if (i >= begin) {
            const bool last = i + 1 == n || i + 1 == begin + p.plan.span_pages;
            if (i == begin) {
                begin_span(p, span);
            }
            add_cells(p, span, p.data.list[i], page, 0, p.data.cells->page_cells);
            if (last) {
                end_span(p, span);
                span = p.r.next_span.fetch_add(1);
            }
        }
        kvp_scan_release(p.r.scan, i);
    }
}

} // namespace

void attend_spans(const pass & p) {
    if (p.plan.span_pages > 1) {
        attend_page_groups(p);
    } else {
        attend_parts(p);
    }
}

} // namespace kvp
