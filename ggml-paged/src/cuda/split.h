// The split of a launch's work: a function of sizes alone, so that the same op always
// gives the same bits.
#pragma once

#include "cuda/kernel_args.h"

namespace kvp_gpu {

struct attend_split {
    uint32_t decode_rows;  // rows of a decode block: 1, 4, 8 or 16; 0: the prefill kernel
    uint32_t tiles;        // of rows, per KV head
    uint32_t span, splits; // cells of a split, splits of a page
};

// True if there are kernels for these head sizes.
bool has_kernels(uint32_t dk, uint32_t dv);

attend_split split_attend(uint32_t n_q, uint32_t group, uint32_t kv_heads, uint32_t dv, uint32_t page_cells);

} // namespace kvp_gpu
