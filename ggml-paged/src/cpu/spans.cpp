// Few queries: the cells are cut into spans, which any thread computes in any order.
#include <algorithm>
#include <cmath>

#include "cpu/forward.h"

namespace kvp {

namespace {

panel_state own_state(const pass & p, uint32_t i) {
    return panel_state(p.mine() + p.plan.t_states + i * p.plan.state_floats);
}

void begin_span(const pass & p, uint32_t span) {
    const size_t rows = (size_t) p.plan.kv_heads * p.plan.rows;
    if (p.plan.few) {
        std::fill_n(p.work + p.plan.m + span * rows, rows, -INFINITY);
        std::fill_n(p.work + p.plan.l + span * rows, rows, 0.0f);
        std::fill_n(p.work + p.plan.acc + span * rows * p.plan.dv, rows * p.plan.dv, 0.0f);
        return;
    }
    for (uint32_t i = 0; i < p.plan.kv_heads * p.plan.panels; i++) {
        clear_panel(p, own_state(p, i));
    }
}

// end_span puts what panels have summed, lane by lane, into the span's place row by row.
void end_span(const pass & p, uint32_t span) {
    const attention_plan & plan = p.plan;
    const size_t rows = (size_t) plan.kv_heads * plan.rows;
    for (uint32_t i = 0; i < plan.kv_heads * plan.panels && !plan.few; i++) {
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

// hide_cells writes -inf for each query and live cell that it does not see, 0 for the
// rest. False where every query sees all.
bool hide_cells(const pass & p, const tile_cells & cells, float * hide) {
    const std::vector<query_view> & views = p.data.views;
    if (std::all_of(views.begin(), views.end(), [&](const query_view & v) { return sees_all(cells, v); })) {
        return false;
    }
    for (size_t i = 0; i < views.size(); i++) {
        const query_view & v = views[i];
        float * out = hide + i * TILE_CELLS;
        for (uint32_t c = 0; c < cells.n; c++) {
            const bool sees = (cells.seqs[c] & v.seq_bit) != 0 && cells.pos[c] >= v.lo && cells.pos[c] <= v.hi;
            out[c] = sees ? 0.0f : -INFINITY;
        }
        std::fill(out + cells.n, out + TILE_CELLS, 0.0f);
    }
    return true;
}

void measure_distances(const pass & p, const tile_cells & cells, float * distance) {
    for (uint32_t i = 0; i < p.plan.n_q; i++) {
        float * out = distance + i * TILE_CELLS;
        for (uint32_t c = 0; c < cells.n; c++) {
            out[c] = (float) std::min<int64_t>(0, (int64_t) cells.pos[c] - p.data.q_pos[i]);
        }
        std::fill(out + cells.n, out + TILE_CELLS, 0.0f);
    }
}

void attend_tile_few(const pass & p, uint32_t span, const kvp_page & page, uint32_t first, const tile_cells & cells) {
    const attention_plan & plan = p.plan;
    float * mine = p.mine();
    const bool hidden = plan.n_q > 1 && hide_cells(p, cells, mine + plan.t_hide);
    const bool alibi  = p.op.params.max_bias > 0;
    if (alibi) {
        measure_distances(p, cells, mine + plan.t_distance);
    }
    for (uint32_t h = 0; h < plan.kv_heads; h++) {
        const size_t row = ((size_t) span * plan.kv_heads + h) * plan.rows;
        few_rows a;
        a.rows     = plan.rows;
        a.gqa      = plan.gqa;
        a.q        = p.work + plan.q + (size_t) h * plan.rows * plan.dk;
        a.softcap  = p.op.params.softcap;
        a.hide     = hidden ? mine + plan.t_hide : nullptr;
        a.distance = alibi ? mine + plan.t_distance : nullptr;
        a.slopes   = p.work + plan.slopes + h * plan.gqa;
        a.m        = p.work + plan.m + row;
        a.l        = p.work + plan.l + row;
        a.acc      = p.work + plan.acc + row * plan.dv;
        a.scores   = mine + plan.t_scores;
        a.v_floats = mine + plan.t_v;
        p.kernels.attend_few(source_of(p, page, first, cells, h), a);
    }
}

void attend_tile_many(const pass & p, const kvp_page & page, uint32_t first, const tile_cells & cells) {
    for (uint32_t h = 0; h < p.plan.kv_heads; h++) {
        const tile_floats tile = convert_tile(p, source_of(p, page, first, cells, h), cells);
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
        if (p.plan.few) {
            attend_tile_few(p, span, page, first, cells);
        } else {
            attend_tile_many(p, page, first, cells);
        }
    }
}

// attend_parts computes spans that are a page or a part of one, as they become ready.
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

// attend_page_groups computes spans of several pages. Pages come to every thread, in
// order; a thread computes those of the spans that it takes and lets the others pass.
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
