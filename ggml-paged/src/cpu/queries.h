// Queries in the kernels' form: scaled, and grouped by shared K/V head. Row r of a K/V
// head is query r / gqa, head r % gqa of the group.
#pragma once

#include "cpu/plan.h"

namespace kvp {

struct op_queries {
    const kvp_params &      params;
    const kvp_f32 &         q;
    const attention_shape & shape;
};

// scale_row writes one row for the decode kernel, [dk].
void scale_row(const op_queries & o, uint32_t kv_head, uint32_t row, float * out);

// head_slopes writes ALiBi's slope of each head.
void head_slopes(const kvp_params & params, float * slopes);

// fill_panel writes the rows of a panel for the prefill kernel, [dk][PANEL_ROWS], and
// their slopes, [PANEL_ROWS], which are zeros without ALiBi.
void fill_panel(const op_queries & o, uint32_t kv_head, uint32_t panel, float * q, float * slopes);

// view_of is the view of a panel's rows, the same for all K/V heads.
panel_view view_of(const batch_data & data, const attention_shape & shape, uint32_t panel);

} // namespace kvp
