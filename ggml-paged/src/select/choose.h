// The choice of cells that one query attends to.
//
// A sequence's cells are compared in blocks of page_cells positions. A block's score for a query
// head is an upper bound of the scores of its cells, by the bounds of its keys, and counts each
// cell as the best one (Quest, arXiv 2406.10774). As a page holds all K/V heads, the heads agree: a
// block's worth is the sum, over the query heads, of its share in the mass that the bounds allow.
// Chosen are the blocks with the first positions and with the newest ones, then those of the
// greatest worth.
//
// The choice depends on the query, the rows and their positions alone: not on where in the cells
// they are, on which pages are in memory, on the number of threads or on other queries.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "select/bounds.h"

namespace kvp {

// chooses returns whether any query of an op may choose: some are marked, and the op has a budget
// and no ALiBi.
bool chooses(const kvp_op & op, const batch_data & data);

// picks returns whether one of its queries does: it is marked, and the budget has fewer than three
// quarters of the blocks that it sees.
bool picks(const kvp_op & op, const batch_data & data, uint32_t query);

// The state of a choice, which all threads of an op share.
struct choice {
    bounds_table &                table;
    const kvp_op &                op;
    const batch_data &            data;
    uint32_t                      query = 0;
    const std::vector<position_block> * blocks = nullptr; // that the query sees
    std::vector<float>            q;        // [heads][2][dk]: positive elements, then negative ones
    std::vector<float>            scores;   // [heads][blocks]
    std::vector<float>            worths;   // [blocks]

    choice(bounds_table & t, const kvp_op & o, const batch_data & d) : table(t), op(o), data(d) {}

    // begin lays out the choice for a query whose row of head 0 is at row.
    void begin(uint32_t query, const float * row, int64_t head_stride);

    // Steps that threads share, each after the one before is done by all: of blocks
    // [first, end), of heads, of blocks.
    void score_blocks(uint32_t first, uint32_t end);
    void share_heads(uint32_t first, uint32_t end);
    void add_worths(uint32_t first, uint32_t end);

    // best is the batch's data of this query alone, with the cells of the chosen blocks. Called
    // once, after add_worths.
    std::shared_ptr<const batch_data> best();

    // compared are the blocks that are not attended to in any case.
    std::vector<const position_block *> compared() const;

private:
    bool fixed(const position_block & block) const;  // attended to in any case
};

} // namespace kvp
