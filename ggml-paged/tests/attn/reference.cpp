#include "reference.h"

#include <algorithm>
#include <cmath>

namespace {

// alibi_slope is as in ggml's soft_max.
double alibi_slope(const kvp_params & params, uint32_t head) {
    uint32_t power = 1;
    while (power * 2 <= params.heads) {
        power *= 2;
    }
    return head < power ? std::pow(2.0, -(double) params.max_bias / power * (head + 1))
                        : std::pow(2.0, -(double) params.max_bias / 2 / power * (2 * (head - power) + 1));
}

} // namespace

bool reference_visible(const kvp_batch_desc & mask, const reference_query & q, int32_t pos, uint64_t seqs) {
    const int64_t at = q.pos;
    return (seqs >> q.seq & 1) != 0 && (pos <= at || q.except) &&
           (mask.chunk == 0 || pos >= at - at % mask.chunk) &&
           (mask.window == INT32_MAX || pos >= at - mask.window);
}

std::vector<double> reference_row(const kvp_layer_desc & layer, const kvp_params & params, const kvp_batch_desc & mask,
                                  const reference_cells & cells, const reference_query & query, uint32_t head, const float * sink) {
    const uint32_t kv_head = head / (params.heads / layer.kv_heads);
    const size_t   bytes_k = kvp_row_bytes(layer.type_k, layer.dk), bytes_v = kvp_row_bytes(layer.type_v, layer.dv);
    std::vector<float>    row(std::max(layer.dk, layer.dv));
    std::vector<double>   scores;
    std::vector<uint32_t> seen;
    double m_max = -INFINITY;
    for (uint32_t c = 0; c < cells.n; c++) {
        if (!reference_visible(mask, query, cells.pos[c], cells.seqs[c])) {
            continue;
        }
        kvp_dequantize_row(layer.type_k, cells.k + ((size_t) c * layer.kv_heads + kv_head) * bytes_k, row.data(), layer.dk);
        double s = 0;
        for (uint32_t e = 0; e < layer.dk; e++) {
            s += (double) row[e] * query.q[(size_t) head * layer.dk + e];
        }
        s *= params.scale;
        if (params.softcap > 0) {
            s = params.softcap * std::tanh(s / params.softcap);
        }
        if (params.max_bias > 0 && cells.pos[c] <= query.pos) {
            s += alibi_slope(params, head) * ((double) cells.pos[c] - query.pos);
        }
        seen.push_back(c);
        scores.push_back(s);
        m_max = std::max(m_max, s);
    }
    std::vector<double> out(layer.dv, 0.0);
    if (seen.empty()) {
        return out;
    }
    m_max = sink ? std::max(m_max, (double) *sink) : m_max;
    double total = sink ? std::exp(*sink - m_max) : 0;
    for (size_t i = 0; i < seen.size(); i++) {
        const double p = std::exp(scores[i] - m_max);
        total += p;
        if (p == 0) {
            continue;
        }
        kvp_dequantize_row(layer.type_v, cells.v + ((size_t) seen[i] * layer.kv_heads + kv_head) * bytes_v, row.data(), layer.dv);
        for (uint32_t d = 0; d < layer.dv; d++) {
            out[d] += p * row[d];
        }
    }
    for (double & x : out) {
        x /= total;
    }
    return out;
}
