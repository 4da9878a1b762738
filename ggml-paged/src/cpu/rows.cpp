// New rows of K and V are written to their cells before attention.
#include <algorithm>

#include "cpu/forward.h"

namespace kvp {

namespace {

const float * row_of(const kvp_f32 & x, uint32_t token, uint32_t head) {
    return reinterpret_cast<const float *>(reinterpret_cast<const char *>(x.data) + token * x.row_stride + head * x.head_stride);
}

void store_cell(const pass & p, const kvp_page & page, uint32_t cell, uint32_t token) {
    const kvp_layer_desc & layer = p.op.layer;
    const size_t bytes_k = kvp_row_bytes(layer.type_k, layer.dk);
    const size_t bytes_v = kvp_row_bytes(layer.type_v, layer.dv);
    for (uint32_t h = 0; h < layer.kv_heads; h++) {
        const size_t row = (size_t) cell * layer.kv_heads + h;
        kvp_quantize_row(layer.type_k, row_of(p.io.k_new, token, h), page.k + row * bytes_k, layer.dk);
        kvp_quantize_row(layer.type_v, row_of(p.io.v_new, token, h), page.v + row * bytes_v, layer.dv);
    }
}

} // namespace

void store_rows(const pass & p) {
    const std::vector<uint32_t> & order = p.data.put_order;
    const uint32_t n          = (uint32_t) order.size();
    const uint32_t page_cells = p.data.cells->page_cells;
    const uint32_t end        = p.share_end(n);
    uint32_t i = p.share_begin(n);
    while (i < end && p.r.error() == 0) {
        // One page at a time: with a budget of one frame, a second pin would wait forever.
        const uint32_t page_number = p.data.q_cell[order[i]] / page_cells;
        kvp_page page;
        const int error = kvp_pin(p.r.pager, p.op.params.layer, page_number, &page);
        if (error != 0) {
            p.r.fail(error, kvp_last_error());
            return;
        }
        uint32_t first = page_cells, last = 0;
        for (; i < end && p.data.q_cell[order[i]] / page_cells == page_number; i++) {
            const uint32_t cell = p.data.q_cell[order[i]] % page_cells;
            store_cell(p, page, cell, order[i]);
            first = std::min(first, cell);
            last  = std::max(last, cell);
        }
        kvp_unpin_rows(p.r.pager, p.op.params.layer, page_number, first, last - first + 1);
    }
}

} // namespace kvp
