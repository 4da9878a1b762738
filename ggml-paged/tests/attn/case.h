// Cases of test_paged_attn: the varied parameters, and the inputs that follow from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paged_attn.h"
#include "pairwise.h"

enum mask_kind { MASK_CAUSAL, MASK_WINDOW, MASK_CHUNK, MASK_SEQUENCES, MASK_EXCEPT, MASK_NOTHING };

struct test_case {
    uint32_t  tokens;      // cells in use before the batch
    uint32_t  n_q;
    uint32_t  page_cells;
    uint32_t  dk, dv;
    uint32_t  heads, kv_heads;
    mask_kind mask;
    int       type_k, type_v;
    float     v_mean;
    int       budget;      // index of: one page, a tenth of the pages, all
    bool      softcap, alibi, sinks;
    uint32_t  threads;
    uint64_t  seed;

    std::string name() const;
};

// parameter is one line of the design: a varied parameter and the names of its values.
struct parameter {
    std::string              name;
    std::vector<std::string> values;
};

// A design makes cases of rows of value indices.
struct case_design {
    std::vector<parameter>  parameters;
    std::vector<design_row> rows;
    std::vector<test_case>  cases;  // one per row
    size_t                  missing = 0;
};

// design_cases covers all pairs of values that some case has whose full product takes no
// more than flop_max multiplications and additions.
case_design design_cases(double flop_max, uint64_t seed);

// Inputs of a case. Rows of K and V are in their stored form, which defines the exact
// result.
struct case_inputs {
    kvp_layer_desc layer;
    kvp_params     params;
    uint32_t       n_cells;
    std::vector<int32_t>  pos;
    std::vector<uint64_t> seqs;  // with the batch's own cells
    std::vector<uint8_t>  k, v;  // [n_cells] rows as stored, poison in unused cells
    std::vector<int32_t>  q_pos;
    std::vector<uint32_t> q_seq, q_cell;
    std::vector<uint8_t>  q_except;
    int32_t               window, chunk;
    std::vector<float>    q, k_new, v_new, sinks;
    float                 v_max;

    kvp_batch_desc batch_desc() const;
};

case_inputs make_inputs(const test_case & c);
