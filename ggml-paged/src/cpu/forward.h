// The steps of a forward pass, each done by all threads for their share.
#pragma once

#include "cpu/panel.h"
#include "cpu/queries.h"
#include "cpu/team.h"
#include "paged_attn.h"

namespace kvp {

// One thread's data of a pass.
struct pass {
    run &                  r;
    const kvp_op &         op;
    const kvp_io &         io;
    const attention_plan & plan;
    const batch_data &     data;
    const cpu_kernels &    kernels;
    uint32_t               thread;
    float *                work;   // aligned

    float * mine() const { return work + plan.threads + thread * plan.thread_floats; }
    const panel_view * views() const { return reinterpret_cast<const panel_view *>(work + plan.views); }

    // share is this thread's part of n things, in order.
    uint32_t share_begin(uint32_t n) const { return (uint32_t) ((uint64_t) n * thread / plan.n_threads); }
    uint32_t share_end(uint32_t n) const { return (uint32_t) ((uint64_t) n * (thread + 1) / plan.n_threads); }
};

// store_rows converts k_new and v_new to their cells.
void store_rows(const pass & p);

// prepare_queries lays out q as the kernels want it, and the views of its rows.
void prepare_queries(const pass & p);

// attend_spans and attend_panels go through the pages.
void attend_spans(const pass & p);
void attend_panels(const pass & p);

// write_spans and write_panels turn sums into out.
void write_spans(const pass & p);
void write_panels(const pass & p);

// attend computes a pass from its queries to its result, over the pages of its data.
void attend(const pass & p);

// bound_new_blocks computes the bounds of blocks that new rows have filled, for choices to come.
void bound_new_blocks(const pass & p);

// attend_chosen computes an op of which some queries choose. The pass's plan
// counts threads alone.
void attend_chosen(const pass & p);

// convert_page_tile converts the live cells of one K/V head of a tile of the page, which
// begins at cell first, into the thread's memory.
tile_floats convert_page_tile(const pass & p, const kvp_page & page, uint32_t first, const tile_cells & cells, uint32_t kv_head);

// attend_panel attends one panel to a converted tile.
void attend_panel(const pass & p, const tile_floats & tile, const tile_cells & cells,
                  uint32_t kv_head, uint32_t panel, const panel_state & state);

} // namespace kvp
