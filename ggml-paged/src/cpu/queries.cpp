// Queries as the kernels want them: scaled, and grouped by the K/V head that they share.
#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/forward.h"

namespace kvp {

namespace {

const float * query_row(const pass & p, uint32_t kv_head, uint32_t row) {
    const uint32_t head = kv_head * p.plan.gqa + row % p.plan.gqa;
    const char *   q    = reinterpret_cast<const char *>(p.io.q.data);
    return reinterpret_cast<const float *>(q + row / p.plan.gqa * p.io.q.row_stride + head * p.io.q.head_stride);
}

// slope_of is ALiBi's slope of a head, as in ggml's soft_max.
float slope_of(const kvp_params & params, uint32_t head) {
    const uint32_t power = 1u << (31 - __builtin_clz(params.heads));
    return head < power ? std::pow(std::pow(2.0f, -params.max_bias / power), (float) (head + 1))
                        : std::pow(std::pow(2.0f, -params.max_bias / 2 / power), (float) (2 * (head - power) + 1));
}

void prepare_rows(const pass & p) {
    const attention_plan & plan = p.plan;
    const uint32_t n = plan.kv_heads * plan.rows;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        const float * q   = query_row(p, i / plan.rows, i % plan.rows);
        float *       out = p.work + plan.q + (size_t) i * plan.dk;
        for (uint32_t e = 0; e < plan.dk; e++) {
            out[e] = q[e] * p.op.params.scale;
        }
    }
    if (p.thread == 0 && p.op.params.max_bias > 0) {
        for (uint32_t h = 0; h < plan.heads; h++) {
            p.work[plan.slopes + h] = slope_of(p.op.params, h);
        }
    }
}

void prepare_panel(const pass & p, uint32_t kv_head, uint32_t panel) {
    const attention_plan & plan = p.plan;
    const size_t at     = (size_t) kv_head * plan.panels + panel;
    float *      q      = p.work + plan.q + at * plan.dk * PANEL_ROWS;
    float *      slopes = p.work + plan.slopes + at * PANEL_ROWS;
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint32_t row  = panel * PANEL_ROWS + r;
        const bool     real = row < plan.rows;
        const float *  from = real ? query_row(p, kv_head, row) : nullptr;
        for (uint32_t e = 0; e < plan.dk; e++) {
            q[e * PANEL_ROWS + r] = real ? from[e] * p.op.params.scale : 0.0f;
        }
        slopes[r] = real && p.op.params.max_bias > 0 ? slope_of(p.op.params, kv_head * plan.gqa + row % plan.gqa) : 0.0f;
    }
}

void prepare_view(const pass & p, uint32_t panel) {
    panel_view view{};
    view.lo_min = view.hi_min = INT32_MAX;
    view.lo_max = view.hi_max = INT32_MIN;
    view.rows   = std::min(PANEL_ROWS, p.plan.rows - panel * PANEL_ROWS);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        if (r >= view.rows) {
            // Padding sees nothing.
            view.lo[r] = INT32_MAX;
            view.hi[r] = INT32_MIN;
            continue;
        }
        const uint32_t     query = (panel * PANEL_ROWS + r) / p.plan.gqa;
        const query_view & q     = p.data.views[query];
        view.lo[r]      = q.lo;
        view.hi[r]      = q.hi;
        view.q_pos[r]   = p.data.q_pos[query];
        view.seq_bit[r] = q.seq_bit;
        view.seqs_or   |= q.seq_bit;
        view.lo_min = std::min(view.lo_min, q.lo);
        view.lo_max = std::max(view.lo_max, q.lo);
        view.hi_min = std::min(view.hi_min, q.hi);
        view.hi_max = std::max(view.hi_max, q.hi);
    }
    new (p.work + p.plan.views + panel * sizeof(panel_view) / sizeof(float)) panel_view(view);
}

} // namespace

static_assert(sizeof(panel_view) % sizeof(float) == 0, "views are laid out in floats");

void prepare_queries(const pass & p) {
    if (p.plan.few) {
        prepare_rows(p);
        return;
    }
    const uint32_t n = p.plan.kv_heads * p.plan.panels;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        prepare_panel(p, i / p.plan.panels, i % p.plan.panels);
    }
    for (uint32_t i = p.share_begin(p.plan.panels); i < p.share_end(p.plan.panels); i++) {
        prepare_view(p, i);
    }
}

} // namespace kvp
