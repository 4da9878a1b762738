// The prefill kernel on one page. A block of tiles is converted once per K/V head, and
// each panel is laid out, brought up to date and put back once per block. Only the memory
// of the panels' views grows with the number of queries.
#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/page.h"
#include "cpu/panel.h"
#include "cpu/queries.h"

namespace kvp {

namespace {

// Enough tiles that laying out a panel costs little beside attention.
constexpr uint32_t BLOCK_TILES = 8;

struct block_of_tiles {
    uint32_t    n = 0;
    uint32_t    first[BLOCK_TILES];  // cell
    tile_cells  cells[BLOCK_TILES];
    tile_floats floats[BLOCK_TILES]; // of the K/V head at hand
};

struct page_memory {
    float *      k;       // [BLOCK_TILES][TILE_CELLS][dk]
    float *      v;       // [BLOCK_TILES][TILE_CELLS][dv]
    float *      q;       // [dk][PANEL_ROWS]
    float *      slopes;  // [PANEL_ROWS]
    float *      scores;  // [TILE_CELLS][PANEL_ROWS]
    float *      state;   // of a panel
    panel_view * views;   // [panels]
};

bool lay_out(const attention_shape & shape, page_scratch & scratch, page_memory & memory) {
    size_t end = 0;
    const size_t k      = reserve_floats(end, (size_t) BLOCK_TILES * TILE_CELLS * shape.dk);
    const size_t v      = reserve_floats(end, (size_t) BLOCK_TILES * TILE_CELLS * shape.dv);
    const size_t q      = reserve_floats(end, (size_t) shape.dk * PANEL_ROWS);
    const size_t slopes = reserve_floats(end, PANEL_ROWS);
    const size_t scores = reserve_floats(end, (size_t) TILE_CELLS * PANEL_ROWS);
    const size_t state  = reserve_floats(end, panel_state::floats(shape.dv));
    const size_t views  = reserve_floats(end, shape.panels * VIEW_FLOATS);
    float * at = scratch.at_least(end);
    if (!at) {
        return false;
    }
    memory = {at + k, at + v, at + q, at + slopes, at + scores, at + state, reinterpret_cast<panel_view *>(at + views)};
    return true;
}

// load_panel and store_panel move rows between the result and the lanes of a panel.
void load_panel(const page_call & c, uint32_t kv_head, uint32_t panel, uint32_t rows, const panel_state & state) {
    for (uint32_t r = 0; r < rows; r++) {
        const size_t  row = c.result_row(kv_head, panel * PANEL_ROWS + r);
        const float * acc = c.acc + row * c.shape.dv;
        state.m[r] = c.m[row];
        state.l[r] = c.l[row];
        for (uint32_t d = 0; d < c.shape.dv; d++) {
            state.acc[d * (size_t) PANEL_ROWS + r] = acc[d];
        }
    }
}

void store_panel(const page_call & c, uint32_t kv_head, uint32_t panel, uint32_t rows, const panel_state & state) {
    for (uint32_t r = 0; r < rows; r++) {
        const size_t row = c.result_row(kv_head, panel * PANEL_ROWS + r);
        float *      acc = c.acc + row * c.shape.dv;
        c.m[row] = state.m[r];
        c.l[row] = state.l[r];
        for (uint32_t d = 0; d < c.shape.dv; d++) {
            acc[d] = state.acc[d * (size_t) PANEL_ROWS + r];
        }
    }
}

// collect_block gathers the tiles with live cells among those from cell `first` on.
void collect_block(const page_call & c, uint32_t first, block_of_tiles & block) {
    const uint32_t end = (uint32_t) std::min<uint64_t>(c.cells, (uint64_t) first + BLOCK_TILES * TILE_CELLS);
    block.n = 0;
    for (; first < end; first += TILE_CELLS) {
        if (collect_tile(c.data, c.relative, first, end, block.cells[block.n])) {
            block.first[block.n++] = first;
        }
    }
}

void convert_block(const page_call & c, uint32_t kv_head, const page_memory & memory, block_of_tiles & block) {
    for (uint32_t t = 0; t < block.n; t++) {
        const tile_source source = source_of(c.op.layer, c.data.cells->page_cells, c.page, block.first[t], block.cells[t], kv_head);
        block.floats[t] = convert_tile(c.kernels, source, block.cells[t], memory.k + (size_t) t * TILE_CELLS * c.shape.dk,
                                       memory.v + (size_t) t * TILE_CELLS * c.shape.dv);
    }
}

void attend_block(const page_call & c, uint32_t kv_head, uint32_t panel, bool begun, const page_memory & memory, const block_of_tiles & block) {
    const panel_view & view = memory.views[panel];
    const auto sees = [&](const tile_cells & cells) { return panel_sees(view, cells); };
    if (std::none_of(block.cells, block.cells + block.n, sees)) {
        return;
    }
    fill_panel({c.op.params, c.io.q, c.shape}, kv_head, panel, memory.q, memory.slopes);
    const panel_state state(memory.state);
    clear_panel(state, c.shape.dv);
    if (begun) {
        load_panel(c, kv_head, panel, view.rows, state);
    }
    for (uint32_t t = 0; t < block.n; t++) {
        if (sees(block.cells[t])) {
            attend_panel(c.kernels, c.op.params, block.floats[t], block.cells[t], {view, memory.q, memory.slopes, memory.scores}, state);
        }
    }
    store_panel(c, kv_head, panel, view.rows, state);
}

} // namespace

bool attend_page_prefill(const page_call & c, page_scratch & scratch) {
    page_memory memory;
    if (!lay_out(c.shape, scratch, memory)) {
        return false;
    }
    for (uint32_t panel = 0; panel < c.shape.panels; panel++) {
        new (memory.views + panel) panel_view(view_of(c.data, c.shape, panel));
    }
    const size_t rows = (size_t) c.shape.n_q * c.shape.heads;
    std::fill_n(c.m, rows, -INFINITY);
    std::fill_n(c.l, rows, 0.0f);
    std::fill_n(c.acc, rows * c.shape.dv, 0.0f);
    block_of_tiles block;
    for (uint32_t first = 0; first < c.cells; first += BLOCK_TILES * TILE_CELLS) {
        collect_block(c, first, block);
        for (uint32_t h = 0; h < c.shape.kv_heads && block.n > 0; h++) {
            convert_block(c, h, memory, block);
            for (uint32_t panel = 0; panel < c.shape.panels; panel++) {
                attend_block(c, h, panel, first > 0, memory, block);
            }
        }
    }
    return true;
}

} // namespace kvp
