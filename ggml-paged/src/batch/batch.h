// Batches and ops, for the rest of the library.
//
// The pager's attachment owns a batch_registry, which owns the batches of each group,
// which own the batches derived from them and the ops. A batch that is no longer among the
// last KVP_BATCHES of its group loses its data. The batch's shell and ops stay for some
// time, so that a late use of such an op is detected.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "paged_attn.h"

namespace kvp {

// The cells of a group at the beginning of a batch. Derived batches share them.
struct batch_cells {
    uint32_t page_cells = 0;
    uint32_t first_page = 0;
    uint32_t first_cell = 0;
    std::vector<int32_t>        pos;
    std::vector<uint64_t>       seqs;
    std::vector<kvp_page_stats> pages;
};

// A query sees the cells of its sequence with a position in [lo, hi]: these two numbers
// express causality, window, chunk and exception.
struct query_view {
    int32_t  lo, hi;
    uint64_t seq_bit;
};

// The cells of a sequence with positions [i * page_cells, (i + 1) * page_cells) for some i,
// wherever they are: a restore puts them elsewhere, and slots that grow together share pages.
struct position_block {
    int32_t  pos_min, pos_max;
    uint64_t mark;                // a hash of which cells they are
    std::vector<uint32_t> cells;  // absolute, by position
    std::vector<uint32_t> pages;  // absolute, of these cells
};

struct query_lists {
    std::once_flag                           made;
    std::vector<std::vector<position_block>> seen;    // by each query of q_select, at least in part
    std::vector<position_block>              filled;  // by the batch's own rows
};

struct batch_data {
    kvp_batch_desc                     desc; // points to the arrays below
    std::shared_ptr<const batch_cells> cells;
    std::vector<int32_t>               q_pos;
    std::vector<uint32_t>              q_seq;
    std::vector<uint32_t>              q_cell;
    std::vector<uint8_t>               q_except; // empty: none
    std::vector<uint8_t>               q_select; // empty: none
    std::vector<query_view>            views;
    std::vector<uint32_t>              list;     // pages that any query sees
    std::vector<uint32_t>              put_order;// queries in the order of their cells
    std::vector<uint64_t>              live;     // bit per cell of the range: any query sees the cell
    std::shared_ptr<query_lists>       lists;    // made when first asked for, see lists_of
};

struct run;           // a forward pass of one op, see cpu/team.h
struct bounds_table;  // see select/bounds.h

} // namespace kvp

struct kvp_op : kvp_op_head {
    kvp_batch *    batch = nullptr;
    kvp_params     params{};
    kvp_layer_desc layer{};
    uint32_t       n_q = 0;
    std::shared_ptr<kvp::run> current;  // guarded by the registry's mutex
};

struct kvp_batch {
    kvp_pager * pager = nullptr;
    std::shared_ptr<const kvp::batch_data>  data; // guarded by the registry's mutex
    std::atomic<const kvp::batch_data *>    view{nullptr};
    std::vector<std::unique_ptr<kvp_batch>> derived;
    std::vector<std::unique_ptr<kvp_op>>    ops;
};

namespace kvp {

// Shells of old batches that are kept to answer -ESTALE.
constexpr uint32_t BATCH_SHELLS_MAX = 64;
constexpr uint32_t GROUPS_MAX       = 16;

struct batch_registry {
    std::deque<std::unique_ptr<kvp_batch>> live[GROUPS_MAX];
    std::deque<std::unique_ptr<kvp_batch>> shells[GROUPS_MAX];
    std::shared_ptr<bounds_table>          bounds;
};

// registry_of returns the pager's registry; the caller holds kvp_attachment_mutex.
batch_registry & registry_of(kvp_pager * pager);

// page_cells_described is the number of described cells of page p (relative to the range).
uint32_t page_cells_described(const batch_cells & cells, uint32_t page);

// class_of is kvp_batch_class for a page relative to the range.
kvp_class class_of(const batch_data & data, uint32_t page, uint32_t first, uint32_t n);

// find_live determines the cells and pages that any query sees.
void find_live(batch_data & data);

// lists_of are the cells that each choosing query sees, by position: made at the first call.
const query_lists & lists_of(const batch_data & data);

// part_of is the data of n queries alone.
std::shared_ptr<const batch_data> part_of(const batch_data & data, uint32_t first, uint32_t n);

// part_of_blocks is the data of one query alone, which sees no other cells than those of blocks.
std::shared_ptr<const batch_data> part_of_blocks(const batch_data & data, uint32_t query, const std::vector<const position_block *> & blocks);

// point_to_own points the description to the batch's own arrays.
void point_to_own(batch_data & data);

// reach_of is the union of all queries' views.
query_view reach_of(const batch_data & data);

// mark_page sets the bits of a page's cells (the page relative to the range) that any query sees,
// and returns whether there are any.
bool mark_page(batch_data & data, const query_view & reach, uint32_t page);

// views_of derives the view of each query.
std::vector<query_view> views_of(const batch_data & data);

} // namespace kvp
