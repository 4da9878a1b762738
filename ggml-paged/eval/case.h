// A case of paged_attn_eval: one attention call, read from a stream. The format is at the
// top of paged_attn_eval.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

// bad_input is a sentence about the fault of a case.
struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct eval_case {
    uint32_t    tokens = 0, n_q = 0;
    uint32_t    heads = 0, kv_heads = 0, dk = 0, dv = 0;
    int         type_k = 0, type_v = 0;
    float       scale = 0, softcap = 0, alibi = 0;
    bool        causal = true, sinks = false;
    int32_t     window = 0, chunk = 0;  // 0: none
    uint32_t    page_tokens = 0, ram_pages = 0;
    std::string backend;

    std::vector<float>    q;            // [n_q][heads][dk]
    std::vector<uint8_t>  k, v;         // [tokens][kv_heads][row]
    std::vector<int32_t>  q_pos;        // [n_q]
    std::vector<uint32_t> q_seq;        // [n_q]
    std::vector<int32_t>  pos;          // [tokens]
    std::vector<uint64_t> seqs;         // [tokens]
    std::vector<float>    sink_scores;  // [heads], or empty

    size_t row_k_bytes() const;         // of a token: kv_heads rows
    size_t row_v_bytes() const;
    size_t page_bytes() const;          // as the pager lays a page out
    uint32_t pages() const;             // at least 1
};

// read_case reads a case up to the end of the stream. Throws bad_input.
eval_case read_case(FILE * in);
