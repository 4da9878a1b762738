// An op in the form for GPU code, read once through the op's table.
#pragma once

#include <string>
#include <vector>

#include "paged_attn.h"

namespace kvp_gpu {

struct op_view {
    const kvp_iface      * iface;
    kvp_op               * op;
    kvp_batch            * batch;
    kvp_pager            * pager;
    const kvp_batch_desc * desc;
    const kvp_params     * params;
    const kvp_layer_desc * layer;
    uint32_t page_cells, group, rows;       // group: query heads per KV head; rows = n_q * heads
    size_t   row_k, row_v, v_offset, page_bytes;
    uint32_t list_pages;                    // upper bound of the batch's page list
    decltype(kvp_iface::cpu_page) cpu_page; // NULL in an older table, as is the next
    decltype(kvp_iface::page_version) page_version;
};

// refuses returns the reason why ops of a layer have no kernels, or NULL.
const char * refuses(const kvp_layer_desc * layer, uint32_t heads);

// read_op returns 0, or a negative errno with a sentence in *why.
int read_op(kvp_op * op, op_view * out, std::string * why);

// Pages of the batch that queries see, ascending.
std::vector<uint32_t> pages_of(const op_view & op);

// Cells of a page that the batch describes.
uint32_t cells_of(const op_view & op, uint32_t page);

} // namespace kvp_gpu
