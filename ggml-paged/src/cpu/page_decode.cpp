// The decode kernel on one page: the running softmax of all K/V heads goes from tile to tile.
#include <algorithm>
#include <cmath>

#include "cpu/decode.h"
#include "cpu/page.h"
#include "cpu/queries.h"

namespace kvp {

namespace {

// lay_out lays the state out in scratch memory. Rows of a single query are in the result's
// order already, and are summed in the result.
bool lay_out(const page_call & c, page_scratch & scratch, float ** q, decode_state & s) {
    const attention_shape & shape = c.shape;
    const size_t rows   = (size_t) shape.kv_heads * shape.rows;
    const size_t copied = shape.n_q == 1 ? 0 : rows;
    size_t end = 0;
    const size_t at_q        = reserve_floats(end, rows * shape.dk);
    const size_t at_slopes   = reserve_floats(end, shape.heads);
    const size_t at_m        = reserve_floats(end, copied);
    const size_t at_l        = reserve_floats(end, copied);
    const size_t at_acc      = reserve_floats(end, copied * shape.dv);
    const size_t at_scores   = reserve_floats(end, (size_t) DECODE_SCORE_ROWS * TILE_CELLS);
    const size_t at_v        = reserve_floats(end, (size_t) V_CHUNK_CELLS * shape.dv);
    const size_t at_mask     = reserve_floats(end, (size_t) shape.n_q * TILE_CELLS);
    const size_t at_distance = reserve_floats(end, (size_t) shape.n_q * TILE_CELLS);
    float * memory = scratch.at_least(end);
    if (!memory) {
        return false;
    }
    *q = memory + at_q;
    s.q        = *q;
    s.slopes   = memory + at_slopes;
    s.m        = copied ? memory + at_m : c.m;
    s.l        = copied ? memory + at_l : c.l;
    s.acc      = copied ? memory + at_acc : c.acc;
    s.scores   = memory + at_scores;
    s.v_floats = memory + at_v;
    s.mask     = memory + at_mask;
    s.distance = memory + at_distance;
    if (c.op.params.max_bias > 0) {
        head_slopes(c.op.params, memory + at_slopes);
    }
    return true;
}

void begin(const page_call & c, float * q, const decode_state & s) {
    const attention_shape & shape = c.shape;
    const op_queries from = {c.op.params, c.io.q, shape};
    const uint32_t rows = shape.kv_heads * shape.rows;
    for (uint32_t i = 0; i < rows; i++) {
        scale_row(from, i / shape.rows, i % shape.rows, q + (size_t) i * shape.dk);
    }
    std::fill_n(s.m, rows, -INFINITY);
    std::fill_n(s.l, rows, 0.0f);
    std::fill_n(s.acc, (size_t) rows * shape.dv, 0.0f);
}

// store_rows_in_order copies rows to their places in the result, the heads of a group at a
// time.
void store_rows_in_order(const page_call & c, const decode_state & s) {
    const attention_shape & shape = c.shape;
    for (uint32_t h = 0; h < shape.kv_heads; h++) {
        for (uint32_t row = 0; row < shape.rows; row += shape.gqa) {
            const size_t from = (size_t) h * shape.rows + row;
            const size_t to   = c.result_row(h, row);
            std::copy_n(s.m + from, shape.gqa, c.m + to);
            std::copy_n(s.l + from, shape.gqa, c.l + to);
            std::copy_n(s.acc + from * shape.dv, (size_t) shape.gqa * shape.dv, c.acc + to * shape.dv);
        }
    }
}

} // namespace

bool attend_page_decode(const page_call & c, page_scratch & scratch) {
    float *   q;
    decode_state state;
    if (!lay_out(c, scratch, &q, state)) {
        return false;
    }
    begin(c, q, state);
    tile_cells tile;
    for (uint32_t first = 0; first < c.cells; first += TILE_CELLS) {
        if (collect_tile(c.data, c.relative, first, c.cells, tile)) {
            attend_tile_decode(c.kernels, c.op, c.data, c.page, first, tile, state);
        }
    }
    if (c.shape.n_q > 1) {
        store_rows_in_order(c, state);
    }
    return true;
}

} // namespace kvp
