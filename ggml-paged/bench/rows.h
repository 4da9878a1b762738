// Inputs of the benchmark: rows of K and V in a cache's type, queries, and the
// result of attention over them in f64.
#pragma once

#include <cstdint>
#include <vector>

#include "stock.h"

// rows_pool holds a prime number of random rows of normal distribution. Caches of any size
// are filled from it: quantizing hundreds of millions of elements would take longer than
// attending to them. Every cell has its own copy in memory.
class rows_pool {
public:
    rows_pool(int type, uint32_t dim, float mean, uint64_t seed);

    size_t          row_bytes() const { return bytes; }
    const uint8_t * row(uint64_t i) const { return stored.data() + i % ROWS * bytes; }
    const float *   values(uint64_t i) const { return dequantized.data() + i % ROWS * dim; }
    float           largest() const;   // max |x|

private:
    static constexpr uint64_t ROWS = 16381;

    size_t               bytes;
    uint32_t             dim;
    std::vector<uint8_t> stored;
    std::vector<float>   dequantized;
};

// cache_rows makes the rows of a cache: the same rows for every benchmark.
struct cache_rows {
    const rows_pool & k, & v;
    uint32_t          kv_heads;

    // number is that of the row of a head in a cell of a layer.
    uint64_t number(uint32_t layer, uint32_t cell, uint32_t head) const {
        return uint64_t(layer) * 7919 + uint64_t(cell) * kv_heads + head;
    }
    // fill writes [n][kv_heads][row] of cells first .. first+n-1.
    void fill(uint32_t layer, uint32_t first, uint32_t n, uint8_t * k_to, uint8_t * v_to) const;
};

// fill_stock fills all layers.
void fill_stock(stock_attention & stock, const cache_rows & rows, const stock_shape & shape);

std::vector<float> random_queries(size_t n, float deviation, uint64_t seed);

// attention_f64 is the result of one head of one query that sees cells 0 .. seen-1.
std::vector<double> attention_f64(const cache_rows & rows, uint32_t layer, uint32_t kv_head, uint32_t seen,
                                  const float * q, uint32_t dim, double scale);
