#include "cpu/plan.h"

#include <algorithm>

#include "cpu/panel.h"

namespace kvp {

namespace {

// From this number of queries on, threads share out rows instead of cells.
constexpr uint32_t PANELS_FROM_QUERIES = 16;

// From this number of rows of a K/V head on, converting a tile once for all rows pays.
constexpr uint32_t DECODE_ROWS_END = 33;

constexpr uint32_t SPAN_CELLS_MIN = TILE_CELLS;
constexpr uint32_t SPAN_CELLS_MAX = 512;
constexpr uint32_t SPANS_WANTED   = 32;

// Bound of the memory of partial results: spans get longer instead.
constexpr uint64_t PARTIAL_BYTES_MAX = 64u << 20;

// choose_spans finds a length that gives enough spans for many threads, and with which
// writing a partial result costs little beside reading the span.
void choose_spans(attention_plan & p, const kvp_op & op, uint32_t n_list, uint32_t page_cells) {
    const uint64_t cells         = (uint64_t) n_list * page_cells;
    const uint64_t partial_bytes = (uint64_t) p.kv_heads * p.rows * (p.dv + 2) * sizeof(float);
    const uint64_t cell_bytes    = (uint64_t) p.kv_heads * (kvp_row_bytes(op.layer.type_k, p.dk) + kvp_row_bytes(op.layer.type_v, p.dv));
    uint64_t span = SPAN_CELLS_MIN;
    while (span < SPAN_CELLS_MAX && (cells / span > SPANS_WANTED || span * cell_bytes < 2 * partial_bytes)) {
        span *= 2;
    }
    while (span < cells && cells / span * partial_bytes > PARTIAL_BYTES_MAX) {
        span *= 2;
    }
    p.parts      = span < page_cells ? (uint32_t) (page_cells / span) : 1;
    p.span_pages = span > page_cells ? (uint32_t) (span / page_cells) : 1;
    p.span_cells = page_cells / p.parts;
    p.spans      = (uint32_t) (((uint64_t) n_list * p.parts + p.span_pages - 1) / p.span_pages);
}

void lay_out_thread(attention_plan & p) {
    size_t end = 0;
    if (p.decode) {
        p.t_v        = reserve_floats(end, (size_t) V_CHUNK_CELLS * p.dv);
        p.t_scores   = reserve_floats(end, (size_t) DECODE_SCORE_ROWS * TILE_CELLS);
        p.t_mask     = reserve_floats(end, (size_t) p.n_q * TILE_CELLS);
        p.t_distance = reserve_floats(end, (size_t) p.n_q * TILE_CELLS);
    } else {
        p.t_k      = reserve_floats(end, (size_t) TILE_CELLS * p.dk);
        p.t_v      = reserve_floats(end, (size_t) TILE_CELLS * p.dv);
        p.t_scores = reserve_floats(end, (size_t) TILE_CELLS * PANEL_ROWS);
        p.t_states = reserve_floats(end, p.spans_in_use ? p.kv_heads * p.panels * p.state_floats : 0);
    }
    p.t_row = reserve_floats(end, p.dv);
    p.thread_floats = end;
}

} // namespace

size_t reserve_floats(size_t & end, size_t n) {
    const size_t at = end;
    end += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return at;
}

attention_shape shape_of(const kvp_op & op) {
    attention_shape s;
    s.n_q      = op.n_q;
    s.heads    = op.params.heads;
    s.kv_heads = op.layer.kv_heads;
    s.gqa      = s.heads / s.kv_heads;
    s.dk       = op.layer.dk;
    s.dv       = op.layer.dv;
    s.rows     = s.n_q * s.gqa;
    s.panels   = (s.rows + PANEL_ROWS - 1) / PANEL_ROWS;
    return s;
}

bool decode_kernel_pays(const attention_shape & shape) {
    return shape.rows < DECODE_ROWS_END;
}

attention_plan plan_of(const kvp_op & op, const batch_data & data, uint32_t n_threads) {
    attention_plan p{};
    static_cast<attention_shape &>(p) = shape_of(op);
    p.n_threads    = n_threads;
    p.spans_in_use = p.n_q < PANELS_FROM_QUERIES;
    p.decode       = p.spans_in_use && decode_kernel_pays(p);
    p.state_floats = panel_state::floats(p.dv);
    if (p.spans_in_use) {
        choose_spans(p, op, (uint32_t) data.list.size(), data.cells->page_cells);
    }

    size_t end = 0;
    const size_t rows = (size_t) p.kv_heads * p.rows;
    const size_t lanes = (size_t) p.kv_heads * p.panels * PANEL_ROWS;
    p.q      = reserve_floats(end, (p.decode ? rows : lanes) * p.dk);
    p.slopes = reserve_floats(end, p.decode ? p.heads : lanes);
    p.views  = reserve_floats(end, p.decode ? 0 : p.panels * VIEW_FLOATS);
    p.m      = reserve_floats(end, p.spans * rows);
    p.l      = reserve_floats(end, p.spans * rows);
    p.acc    = reserve_floats(end, p.spans * rows * p.dv);
    p.states = reserve_floats(end, p.spans_in_use ? 0 : p.kv_heads * p.panels * p.state_floats);
    lay_out_thread(p);
    p.threads = reserve_floats(end, p.thread_floats * n_threads);
    p.bytes   = (end + ALIGN_FLOATS) * sizeof(float);
    return p;
}

} // namespace kvp
