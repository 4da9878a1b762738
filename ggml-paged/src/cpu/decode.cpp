#include "cpu/decode.h"

#include <algorithm>
#include <cmath>

namespace kvp {

namespace {

// mask_cells writes, for each query, -inf for live cells that it does not see and 0 for
// the others. False if every query sees all live cells.
bool mask_cells(const std::vector<query_view> & views, const tile_cells & cells, float * mask) {
    if (std::all_of(views.begin(), views.end(), [&](const query_view & v) { return sees_all(cells, v); })) {
        return false;
    }
    for (size_t i = 0; i < views.size(); i++) {
        const query_view & v = views[i];
        float * out = mask + i * TILE_CELLS;
        for (uint32_t c = 0; c < cells.n; c++) {
            const bool sees = (cells.seqs[c] & v.seq_bit) != 0 && cells.pos[c] >= v.lo && cells.pos[c] <= v.hi;
            out[c] = sees ? 0.0f : -INFINITY;
        }
        std::fill(out + cells.n, out + TILE_CELLS, 0.0f);
    }
    return true;
}

void measure_distances(const std::vector<int32_t> & q_pos, const tile_cells & cells, float * distance) {
    for (size_t i = 0; i < q_pos.size(); i++) {
        float * out = distance + i * TILE_CELLS;
        for (uint32_t c = 0; c < cells.n; c++) {
            out[c] = (float) std::min<int64_t>(0, (int64_t) cells.pos[c] - q_pos[i]);
        }
        std::fill(out + cells.n, out + TILE_CELLS, 0.0f);
    }
}

} // namespace

void attend_tile_decode(const cpu_kernels & kernels, const kvp_op & op, const batch_data & data, const kvp_page & page,
                        uint32_t first, const tile_cells & cells, const decode_state & s) {
    const kvp_layer_desc & layer = op.layer;
    const uint32_t gqa  = op.params.heads / layer.kv_heads;
    const uint32_t rows = op.n_q * gqa;
    // Live cells are seen by at least one query, so a single query sees all of them.
    const bool masked = op.n_q > 1 && mask_cells(data.views, cells, s.mask);
    const bool alibi  = op.params.max_bias > 0;
    if (alibi) {
        measure_distances(data.q_pos, cells, s.distance);
    }
    for (uint32_t h = 0; h < layer.kv_heads; h++) {
        const size_t row = (size_t) h * rows;
        decode_rows a;
        a.rows     = rows;
        a.gqa      = gqa;
        a.q        = s.q + row * layer.dk;
        a.softcap  = op.params.softcap;
        a.mask     = masked ? s.mask : nullptr;
        a.distance = alibi ? s.distance : nullptr;
        a.slopes   = s.slopes + h * gqa;
        a.m        = s.m + row;
        a.l        = s.l + row;
        a.acc      = s.acc + row * layer.dv;
        a.scores   = s.scores;
        a.v_floats = s.v_floats;
        kernels.attend_decode(source_of(layer, data.cells->page_cells, page, first, cells, h), a);
    }
}

} // namespace kvp
