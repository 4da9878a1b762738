#include "cpu_page.h"

#include <errno.h>

#include <algorithm>
#include <cmath>

#include "batch/batch.h"
#include "cpu/kernels.h"
#include "cpu/tile.h"

using namespace kvp;

namespace {

constexpr uint32_t SCORE_ROWS = 8;
constexpr size_t   ALIGN_FLOATS = 16;

struct scratch_floats {
    float * q;
    float * scores;
    float * v;
};

scratch_floats lay_out(std::vector<float> & memory, uint32_t rows, uint32_t dk, uint32_t dv) {
    const size_t q = size_t(rows) * dk, scores = size_t(SCORE_ROWS) * TILE_CELLS, v = size_t(V_CHUNK_CELLS) * dv;
    const auto round = [](size_t n) { return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS; };
    memory.resize(round(q) + round(scores) + v + ALIGN_FLOATS);
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
    float * begin = reinterpret_cast<float *>((at + 63) / 64 * 64);
    return {begin, begin + round(q), begin + round(q) + round(scores)};
}

void scale_queries(const kvp_op & op, const kvp_io & io, float * out) {
    for (uint32_t h = 0; h < op.params.heads; h++) {
        const char *  base = reinterpret_cast<const char *>(io.q.data) + h * io.q.head_stride;
        const float * q = reinterpret_cast<const float *>(base);
        for (uint32_t i = 0; i < op.layer.dk; i++) {
            out[size_t(h) * op.layer.dk + i] = q[i] * op.params.scale;
        }
    }
}

tile_source source_of(const kvp_layer_desc & layer, const kvp_page & page, uint32_t first, uint32_t kv_head, const tile_cells & cells) {
    const size_t row_k = kvp_row_bytes(layer.type_k, layer.dk), row_v = kvp_row_bytes(layer.type_v, layer.dv);
    tile_source s = {};
    s.type_k   = layer.type_k;
    s.type_v   = layer.type_v;
    s.dk       = layer.dk;
    s.dv       = layer.dv;
    s.k_stride = row_k * layer.kv_heads;
    s.v_stride = row_v * layer.kv_heads;
    s.k        = page.k + first * s.k_stride + kv_head * row_k;
    s.v        = page.v + first * s.v_stride + kv_head * row_v;
    s.live     = cells.live;
    s.n        = cells.n;
    return s;
}

} // namespace

int cpu_pages::attend(void * user, uint32_t worker, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells, kvp_class,
                      const kvp_page * data, float * m, float * l, float * acc) {
    const batch_data * batch = op->batch->view.load();
    if (!batch) {
        return -ESTALE;
    }
    if (op->n_q != 1 || op->params.max_bias > 0) {
        return -ENOTSUP;
    }
    const kvp_layer_desc & layer = op->layer;
    const uint32_t gqa = op->params.heads / layer.kv_heads;
    const scratch_floats s = lay_out(static_cast<cpu_pages *>(user)->scratch_[worker], op->params.heads, layer.dk, layer.dv);
    scale_queries(*op, *io, s.q);
    std::fill_n(m, op->params.heads, -INFINITY);
    std::fill_n(l, op->params.heads, 0.0f);
    std::fill_n(acc, size_t(op->params.heads) * layer.dv, 0.0f);
    tile_cells tile;
    for (uint32_t first = 0; first < cells; first += TILE_CELLS) {
        // Live cells are those that the one query sees.
        if (!collect_tile(*batch, page - batch->cells->first_page, first, cells, tile)) {
            continue;
        }
        for (uint32_t h = 0; h < layer.kv_heads; h++) {
            const size_t row = size_t(h) * gqa;
            few_rows rows = {};
            rows.rows     = gqa;
            rows.gqa      = gqa;
            rows.q        = s.q + row * layer.dk;
            rows.softcap  = op->params.softcap;
            rows.m        = m + row;
            rows.l        = l + row;
            rows.acc      = acc + row * layer.dv;
            rows.scores   = s.scores;
            rows.v_floats = s.v;
            kernels_in_use().attend_few(source_of(layer, *data, first, h, tile), rows);
        }
    }
    return 0;
}
