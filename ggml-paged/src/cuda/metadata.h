// Data of a batch that kernels need besides K and V, as one block that goes to the device
// in one copy: queries, the cells of new rows, ALiBi slopes, and position and sequences of
// the cells of pages whose predicates must be evaluated.
#pragma once

#include <vector>

#include "cuda/kernel_args.h"
#include "cuda/op_view.h"

namespace kvp_gpu {

struct metadata_layout {
    size_t queries, new_cells, slopes, seqs, pos;  // offsets of arrays in the block
    size_t bytes;
    bool   alibi;
    std::vector<uint32_t> first;   // per page of the list: index of its first cell in pos and
                                   // seqs, or no_metadata
    std::vector<kvp_class> cls;    // per page of the list
};

metadata_layout lay_out_metadata(const op_view & op, const std::vector<uint32_t> & pages);

// metadata_bytes_max is enough for any list of pages of the op's batch.
size_t metadata_bytes_max(const op_view & op);

void write_metadata(const op_view & op, const std::vector<uint32_t> & pages, const metadata_layout & layout, uint8_t * block);

// ALiBi's slope of a head, as in ggml's soft_max.
float alibi_slope(uint32_t head, uint32_t heads, float max_bias);

} // namespace kvp_gpu
