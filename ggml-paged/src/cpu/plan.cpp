#include "cpu/plan.h"

#include <algorithm>

namespace kvp {

namespace {

// From this number of queries on, threads share out rows instead of cells.
constexpr uint32_t PANELS_FROM_QUERIES = 16;

// From this number of rows of a K/V head on, converting a tile once for all pays.
constexpr uint32_t FEW_ROWS_END = 33;

constexpr uint32_t SPAN_CELLS_MIN = TILE_CELLS;
constexpr uint32_t SPAN_CELLS_MAX = 512;
constexpr uint32_t SPANS_WANTED   = 32;

// Partial results take no more memory than this: spans get longer instead.
constexpr uint64_t PARTIAL_BYTES_MAX = 64u << 20;

constexpr size_t ALIGN_FLOATS = 16;

// room lays n floats behind what there is and returns where they are.
size_t room(size_t & end, size_t n) {
    const size_t at = end;
    end += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return at;
}

// choose_spans finds a length with which there are enough spans for many threads, and
// with which writing a partial result costs little next to reading the span.
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
    if (p.few) {
        p.t_v        = room(end, (size_t) V_CHUNK_CELLS * p.dv);
        p.t_scores   = room(end, (size_t) 8 * TILE_CELLS);
        p.t_hide     = room(end, (size_t) p.n_q * TILE_CELLS);
        p.t_distance = room(end, (size_t) p.n_q * TILE_CELLS);
    } else {
        p.t_k      = room(end, (size_t) TILE_CELLS * p.dk);
        p.t_v      = room(end, (size_t) TILE_CELLS * p.dv);
        p.t_scores = room(end, (size_t) TILE_CELLS * PANEL_ROWS);
        p.t_states = room(end, p.spans_in_use ? p.kv_heads * p.panels * p.state_floats : 0);
    }
    p.t_row = room(end, p.dv);
    p.thread_floats = end;
}

} // namespace

attention_plan plan_of(const kvp_op & op, const batch_data & data, uint32_t n_threads) {
    attention_plan p{};
    p.n_threads = n_threads;
    p.n_q       = data.desc.n_q;
    p.heads     = op.params.heads;
    p.kv_heads  = op.layer.kv_heads;
    p.gqa       = p.heads / p.kv_heads;
    p.dk        = op.layer.dk;
    p.dv        = op.layer.dv;
    p.rows      = p.n_q * p.gqa;
    p.panels    = (p.rows + PANEL_ROWS - 1) / PANEL_ROWS;
    p.spans_in_use = p.n_q < PANELS_FROM_QUERIES;
    p.few          = p.spans_in_use && p.rows < FEW_ROWS_END;
    p.state_floats = (size_t) PANEL_ROWS * (p.dv + 2);
    if (p.spans_in_use) {
        choose_spans(p, op, (uint32_t) data.list.size(), data.cells->page_cells);
    }

    size_t end = 0;
    const size_t rows = (size_t) p.kv_heads * p.rows;
    const size_t lanes = (size_t) p.kv_heads * p.panels * PANEL_ROWS;
    p.q      = room(end, (p.few ? rows : lanes) * p.dk);
    p.slopes = room(end, p.few ? p.heads : lanes);
    p.views  = room(end, p.few ? 0 : (p.panels * sizeof(panel_view) + sizeof(float) - 1) / sizeof(float));
    p.m      = room(end, p.spans * rows);
    p.l      = room(end, p.spans * rows);
    p.acc    = room(end, p.spans * rows * p.dv);
    p.states = room(end, p.spans_in_use ? 0 : p.kv_heads * p.panels * p.state_floats);
    lay_out_thread(p);
    p.threads = room(end, p.thread_floats * n_threads);
    p.bytes   = (end + ALIGN_FLOATS) * sizeof(float);
    return p;
}

} // namespace kvp
