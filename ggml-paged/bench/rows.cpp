#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kv_types.h"

rows_pool::rows_pool(int type, uint32_t dim_, float mean, uint64_t seed)
    : bytes(kvp_row_bytes(type, dim_)), dim(dim_), stored(ROWS * bytes), dequantized(ROWS * dim_) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(mean, 1.0f);
    std::vector<float> row(dim);
    for (uint64_t i = 0; i < ROWS; i++) {
        for (float & x : row) {
            x = normal(rng);
        }
        kvp_quantize_row(type, row.data(), stored.data() + i * bytes, dim);
        kvp_dequantize_row(type, stored.data() + i * bytes, dequantized.data() + i * dim, dim);
    }
}

float rows_pool::largest() const {
    float out = 0;
    for (float x : dequantized) {
        out = std::max(out, std::fabs(x));
    }
    return out;
}

void cache_rows::fill(uint32_t layer, uint32_t first, uint32_t n, uint8_t * k_to, uint8_t * v_to) const {
    for (uint32_t cell = first; cell < first + n; cell++) {
        for (uint32_t head = 0; head < kv_heads; head++) {
            const uint64_t i = number(layer, cell, head);
            std::memcpy(k_to, k.row(i), k.row_bytes());
            std::memcpy(v_to, v.row(i), v.row_bytes());
            k_to += k.row_bytes();
            v_to += v.row_bytes();
        }
    }
}

void fill_stock(stock_attention & stock, const cache_rows & rows, const stock_shape & shape) {
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        rows.fill(layer, 0, shape.tokens, stock.k(layer), stock.v(layer));
    }
}

std::vector<float> random_queries(size_t n, float deviation, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> out(n);
    for (float & x : out) {
        x = normal(rng);
    }
    return out;
}

std::vector<double> attention_f64(const cache_rows & rows, uint32_t layer, uint32_t kv_head, uint32_t seen,
                                  const float * q, uint32_t dim, double scale) {
    std::vector<double> weights(seen);
    double top = -INFINITY;
    for (uint32_t cell = 0; cell < seen; cell++) {
        const float * k = rows.k.values(rows.number(layer, cell, kv_head));
        double s = 0;
        for (uint32_t d = 0; d < dim; d++) {
            s += double(q[d]) * k[d];
        }
        weights[cell] = scale * s;
        top = std::max(top, weights[cell]);
    }
    std::vector<double> out(dim, 0.0);
    double total = 0;
    for (uint32_t cell = 0; cell < seen; cell++) {
        const double w = std::exp(weights[cell] - top);
        const float * v = rows.v.values(rows.number(layer, cell, kv_head));
        total += w;
        for (uint32_t d = 0; d < dim; d++) {
            out[d] += w * v[d];
        }
    }
    for (double & x : out) {
        x /= total;
    }
    return out;
}
