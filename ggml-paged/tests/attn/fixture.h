// A small pager with layers of one group, and calls of the CPU op, for unit tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend.h"
#include "paged_attn.h"

struct small_pager {
    kvp_pager * p = nullptr;
    uint32_t    frames;

    // layers are all in group 0; frames counts pages that fit in memory.
    small_pager(uint32_t page_cells, uint32_t frames, const std::vector<kvp_layer_desc> & layers,
                int (*io_fault)(void *, int, uint64_t, size_t) = nullptr, void * user = nullptr);
    ~small_pager() { kvp_pager_free(p); }
    small_pager(const small_pager &) = delete;

    // write stores rows given as floats.
    void write(uint32_t layer, uint32_t cell, const std::vector<float> & k, const std::vector<float> & v);
};

// A batch's description with arrays of its own.
struct batch_args {
    std::vector<int32_t>  pos;
    std::vector<uint64_t> seqs;
    std::vector<int32_t>  q_pos;
    std::vector<uint32_t> q_seq, q_cell;
    std::vector<uint8_t>  q_except, q_select;
    uint32_t first_cell = 0;
    int32_t  window     = INT32_MAX;
    int32_t  chunk      = 0;

    kvp_batch_desc desc() const;
};

// Everything that an op reads and writes, contiguous.
struct op_args {
    std::vector<float> q, k_new, v_new, sinks, out;

    op_args(const kvp_layer_desc & layer, uint32_t heads, uint32_t n_q, bool rows);
    kvp_io io(const kvp_layer_desc & layer, uint32_t heads);
};

inline int forward(kvp_op * op, const kvp_io & io, uint32_t threads) {
    return test_backend_cpu()->forward(op, &io, threads, 3);
}
