// Attention in f64, from the definition in paged_attn.h, apart from all code that is
// tested.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_attn.h"

// The attended cells with positions and sequences, and stored rows of K and V.
struct reference_cells {
    uint32_t         n;
    const int32_t  * pos;
    const uint64_t * seqs;
    const uint8_t  * k;  // [n][kv_heads] rows
    const uint8_t  * v;
};

struct reference_query {
    int32_t       pos;
    uint32_t      seq;
    bool          except;
    const float * q;  // [heads][dk]
};

bool reference_visible(const kvp_batch_desc & mask, const reference_query & query, int32_t pos, uint64_t seqs);

// reference_row computes one head of one query. sink is NULL for none.
std::vector<double> reference_row(const kvp_layer_desc & layer, const kvp_params & params, const kvp_batch_desc & mask,
                                  const reference_cells & cells, const reference_query & query, uint32_t head, const float * sink);
