// Queries in the kernels' form: scaled, and grouped by shared K/V head.
#include "cpu/queries.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/forward.h"

namespace kvp {

namespace {

const float * query_row(const op_queries & o, uint32_t kv_head, uint32_t row) {
    const uint32_t head = kv_head * o.shape.gqa + row % o.shape.gqa;
    const char *   q    = reinterpret_cast<const char *>(o.q.data);
    return reinterpret_cast<const float *>(q + row / o.shape.gqa * o.q.row_stride + head * o.q.head_stride);
}

// slope_of is ALiBi's slope of a head, as in ggml's soft_max.
float slope_of(const kvp_params & params, uint32_t head) {
    const uint32_t power = 1u << (31 - __builtin_clz(params.heads));
    return head < power ? std::pow(std::pow(2.0f, -params.max_bias / power), (float) (head + 1))
                        : std::pow(std::pow(2.0f, -params.max_bias / 2 / power), (float) (2 * (head - power) + 1));
}

void prepare_rows(const pass & p) {
    const attention_plan & plan = p.plan;
    const op_queries from = {p.op.params, p.io.q, plan};
    const uint32_t n = plan.kv_heads * plan.rows;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        scale_row(from, i / plan.rows, i % plan.rows, p.work + plan.q + (size_t) i * plan.dk);
    }
    if (p.thread == 0 && p.op.params.max_bias > 0) {
        head_slopes(p.op.params, p.work + plan.slopes);
    }
}

} // namespace

void scale_row(const op_queries & o, uint32_t kv_head, uint32_t row, float * out) {
    const float * q = query_row(o, kv_head, row);
    for (uint32_t e = 0; e < o.shape.dk; e++) {
        out[e] = q[e] * o.params.scale;
    }
}

void head_slopes(const kvp_params & params, float * slopes) {
    for (uint32_t h = 0; h < params.heads; h++) {
        slopes[h] = slope_of(params, h);
    }
}

void fill_panel(const op_queries & o, uint32_t kv_head, uint32_t panel, float * q, float * slopes) {
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint32_t row  = panel * PANEL_ROWS + r;
        const bool     real = row < o.shape.rows;
        const float *  from = real ? query_row(o, kv_head, row) : nullptr;
        for (uint32_t e = 0; e < o.shape.dk; e++) {
            q[e * PANEL_ROWS + r] = real ? from[e] * o.params.scale : 0.0f;
        }
        slopes[r] = real && o.params.max_bias > 0 ? slope_of(o.params, kv_head * o.shape.gqa + row % o.shape.gqa) : 0.0f;
    }
}

panel_view view_of(const batch_data & data, const attention_shape & shape, uint32_t panel) {
    panel_view view{};
    view.lo_min = view.hi_min = INT32_MAX;
    view.lo_max = view.hi_max = INT32_MIN;
    view.rows   = std::min(PANEL_ROWS, shape.rows - panel * PANEL_ROWS);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        if (r >= view.rows) {
            // Padding sees no cell.
            view.lo[r] = INT32_MAX;
            view.hi[r] = INT32_MIN;
            continue;
        }
        const uint32_t     query = (panel * PANEL_ROWS + r) / shape.gqa;
        const query_view & q     = data.views[query];
        view.lo[r]      = q.lo;
        view.hi[r]      = q.hi;
        view.q_pos[r]   = data.q_pos[query];
        view.seq_bit[r] = q.seq_bit;
        view.seqs_or   |= q.seq_bit;
        view.lo_min = std::min(view.lo_min, q.lo);
        view.lo_max = std::max(view.lo_max, q.lo);
        view.hi_min = std::min(view.hi_min, q.hi);
        view.hi_max = std::max(view.hi_max, q.hi);
    }
    return view;
}

void prepare_queries(const pass & p) {
    const attention_plan & plan = p.plan;
    if (plan.decode) {
        prepare_rows(p);
        return;
    }
    const uint32_t n = plan.kv_heads * plan.panels;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        fill_panel({p.op.params, p.io.q, plan}, i / plan.panels, i % plan.panels,
                   p.work + plan.q + (size_t) i * plan.dk * PANEL_ROWS, p.work + plan.slopes + (size_t) i * PANEL_ROWS);
    }
    for (uint32_t i = p.share_begin(plan.panels); i < p.share_end(plan.panels); i++) {
        new (p.work + plan.views + i * VIEW_FLOATS) panel_view(view_of(p.data, plan, i));
    }
}

} // namespace kvp
