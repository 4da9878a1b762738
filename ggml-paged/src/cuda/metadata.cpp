#include "cuda/metadata.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvp_gpu {

namespace {

size_t aligned(size_t n) { return (n + 15) / 16 * 16; }

void place_arrays(const op_view & op, size_t cells, metadata_layout * out) {
    const size_t n_q = op.desc->n_q;
    out->queries = 0;
    out->new_cells = aligned(n_q * sizeof(query_desc));
    out->slopes = out->new_cells + aligned(n_q * sizeof(uint32_t));
    out->seqs = out->slopes + aligned(op.params->heads * sizeof(float));
    out->pos = out->seqs + aligned(cells * sizeof(uint64_t));
    out->bytes = out->pos + aligned(cells * sizeof(int32_t));
}

int32_t clamped(int64_t x) {
    return int32_t(std::min<int64_t>(std::max<int64_t>(x, INT32_MIN), INT32_MAX));
}

// Causality, exception, window and chunk are all a range of positions.
query_desc describe_query(const kvp_batch_desc & desc, uint32_t i) {
    const int64_t pos = desc.q_pos[i];
    int64_t lo = INT32_MIN;
    if (desc.window != INT32_MAX) {
        lo = pos - desc.window;
    }
    if (desc.chunk != 0) {
        lo = std::max(lo, pos - pos % desc.chunk);
    }
    query_desc q;
    q.pos = desc.q_pos[i];
    q.lo = clamped(lo);
    q.hi = desc.q_except && desc.q_except[i] ? INT32_MAX : desc.q_pos[i];
    q.seq = desc.q_seq[i];
    return q;
}

} // namespace

float alibi_slope(uint32_t head, uint32_t heads, float max_bias) {
    const float power = std::exp2(std::floor(std::log2(float(heads))));
    if (float(head) < power) {
        return std::pow(std::exp2(-max_bias / power), float(head + 1));
    }
    return std::pow(std::exp2(-max_bias / 2.0f / power), float(2 * (head - uint32_t(power)) + 1));
}

metadata_layout lay_out_metadata(const op_view & op, const std::vector<uint32_t> & pages) {
    metadata_layout out = {};
    out.alibi = op.params->max_bias > 0.0f;
    uint32_t cells = 0;
    for (uint32_t page : pages) {
        const kvp_class cls = op.iface->batch_class(op.batch, page, 0, op.desc->n_q);
        // A page that the batch's range cuts off is not full, even if its class is FULL.
        const uint32_t n = cells_of(op, page);
        const bool full = cls == KVP_FULL && n == op.page_cells;
        out.cls.push_back(full ? KVP_FULL : KVP_MIXED);
        out.first.push_back(full && !out.alibi ? no_metadata : cells);
        cells += full && !out.alibi ? 0 : n;
    }
    place_arrays(op, cells, &out);
    return out;
}

size_t metadata_bytes_max(const op_view & op) {
    metadata_layout out = {};
    place_arrays(op, op.desc->n_cells, &out);
    return out.bytes;
}

void write_metadata(const op_view & op, const std::vector<uint32_t> & pages, const metadata_layout & layout, uint8_t * block) {
    const kvp_batch_desc & desc = *op.desc;
    query_desc * queries = reinterpret_cast<query_desc *>(block + layout.queries);
    for (uint32_t i = 0; i < desc.n_q; ++i) {
        queries[i] = describe_query(desc, i);
    }
    if (desc.q_cell) {
        std::memcpy(block + layout.new_cells, desc.q_cell, desc.n_q * sizeof(uint32_t));
    }
    float * slopes = reinterpret_cast<float *>(block + layout.slopes);
    for (uint32_t h = 0; h < op.params->heads && layout.alibi; ++h) {
        slopes[h] = alibi_slope(h, op.params->heads, op.params->max_bias);
    }
    for (size_t i = 0; i < pages.size(); ++i) {
        if (layout.first[i] == no_metadata) {
            continue;
        }
        const size_t n = cells_of(op, pages[i]);
        const size_t from = size_t(pages[i]) * op.page_cells - desc.first_cell;
        std::memcpy(block + layout.seqs + layout.first[i] * sizeof(uint64_t), desc.seqs + from, n * sizeof(uint64_t));
        std::memcpy(block + layout.pos + layout.first[i] * sizeof(int32_t), desc.pos + from, n * sizeof(int32_t));
    }
}

} // namespace kvp_gpu
