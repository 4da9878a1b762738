// Bounds of keys: the least and the greatest value of each channel of K, over a block of a
// sequence. Memory: 4 * kv_heads * dk bytes for each of them.
//
// Bounds follow from the rows alone, so that a block has the same ones after a restore. They are
// good while the block has the cells, and these cells' pages the versions, that they were computed
// of, and are computed again after that. Cells of other sequences do not count: what one sequence
// does must not show in another's result.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "batch/batch.h"

namespace kvp {

struct key_bounds {
    uint64_t mark;               // see position_block
    uint64_t version;            // of all its pages together
    std::vector<uint16_t> rows;  // f16 [kv_heads][2][dk]: the greatest values, then the least
};

// The bounds of all layers of a pager. One op at a time uses a layer's.
struct bounds_table {
    // layers has, for each page of each layer, the newest bounds of blocks whose first cell is there.
    std::vector<std::vector<std::vector<key_bounds>>> layers;
    std::mutex            storing;    // held by threads of an op that store bounds
    std::atomic<uint64_t> bytes{0};   // held
    std::atomic<uint64_t> seen{0};    // blocks that queries saw when they chose
    std::atomic<uint64_t> chosen{0};  // of these, those that were chosen
};

// table_of returns the pager's table with room for a layer; the caller holds
// kvp_attachment_mutex.
bounds_table & table_of(kvp_pager * pager, uint32_t layer);

// find_bounds returns the rows of the bounds of a block, whether or not they are good; NULL for
// none.
const uint16_t * find_bounds(const kvp_op & op, const bounds_table & table, const position_block & block);

// lacking are those of the blocks without good bounds.
std::vector<const position_block *> lacking(const kvp_op & op, const batch_cells & cells, const bounds_table & table,
                                            const std::vector<const position_block *> & blocks);

// compute_bounds brings a block's pages into frames, one after the other, and computes its bounds.
// Returns 0 or an error of the pager.
int compute_bounds(const kvp_op & op, const position_block & block, bounds_table & table);

} // namespace kvp
