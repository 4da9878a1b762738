// The last step: sums become outputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/forward.h"

namespace kvp {

namespace {

// share_of_sum is the factor that turns the sum of exp(score - m) * V into the result. A
// row that saw no cell gives zeros, with a sink or without.
float share_of_sum(const pass & p, uint32_t head, float m, float l) {
    if (l == 0) {
        return 0.0f;
    }
    if (!p.io.sinks) {
        return 1.0f / l;
    }
    const float sink = p.io.sinks[head];
    const float m_max = std::max(m, sink);
    return std::exp(m - m_max) / (l * std::exp(m - m_max) + std::exp(sink - m_max));
}

float * out_row(const pass & p, uint32_t kv_head, uint32_t row, uint32_t * head) {
    *head = kv_head * p.plan.gqa + row % p.plan.gqa;
    return p.io.out + ((size_t) (row / p.plan.gqa) * p.plan.heads + *head) * p.plan.dv;
}

// merge_row adds up the spans' sums of one row, in the order of the spans.
void merge_row(const pass & p, size_t row, float * sum, float * m_out, float * l_out) {
    const attention_plan & plan = p.plan;
    const size_t  rows = (size_t) plan.kv_heads * plan.rows;
    const float * m    = p.work + plan.m + row;
    const float * l    = p.work + plan.l + row;
    const float * acc  = p.work + plan.acc + row * plan.dv;
    float m_max = -INFINITY;
    for (uint32_t s = 0; s < plan.spans; s++) {
        m_max = std::max(m_max, m[s * rows]);
    }
    float total = 0;
    std::fill_n(sum, plan.dv, 0.0f);
    for (uint32_t s = 0; s < plan.spans; s++) {
        if (l[s * rows] == 0) {
            continue;
        }
        const float weight = std::exp(m[s * rows] - m_max);
        total += l[s * rows] * weight;
        p.kernels.merge(sum, 1.0f, acc + s * rows * plan.dv, weight, plan.dv);
    }
    *m_out = m_max;
    *l_out = total;
}

} // namespace

void write_spans(const pass & p) {
    const uint32_t n   = p.plan.kv_heads * p.plan.rows;
    float *        sum = p.mine() + p.plan.t_row;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        float m, l;
        merge_row(p, i, sum, &m, &l);
        uint32_t head;
        float * out   = out_row(p, i / p.plan.rows, i % p.plan.rows, &head);
        const float f = share_of_sum(p, head, m, l);
        for (uint32_t d = 0; d < p.plan.dv; d++) {
            out[d] = sum[d] * f;
        }
    }
}

void write_panels(const pass & p) {
    const uint32_t n = p.plan.kv_heads * p.plan.panels;
    for (uint32_t i = p.share_begin(n); i < p.share_end(n); i++) {
        const panel_state state(p.work + p.plan.states + i * p.plan.state_floats);
        const uint32_t panel = i % p.plan.panels;
        for (uint32_t r = 0; r < p.views()[panel].rows; r++) {
            uint32_t head;
            float * out   = out_row(p, i / p.plan.panels, panel * PANEL_ROWS + r, &head);
            const float f = share_of_sum(p, head, state.m[r], state.l[r]);
            for (uint32_t d = 0; d < p.plan.dv; d++) {
                out[d] = state.acc[d * (size_t) PANEL_ROWS + r] * f;
            }
        }
    }
}

} // namespace kvp
