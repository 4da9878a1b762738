// Partial results into the running state, and the state into the output. A partial is the
// largest score m, l = sum exp(s - m) and acc = sum exp(s - m) * v of the cells it saw,
// per row; a row that saw no cell has m = minus infinity, and l and acc 0.
#pragma once

#include "cuda/portable.cuh"

namespace KVP_KERNELS {

// fold_sum adds a partial's sum to the state's. Each step rounds separately: if a compiler
// fused only some copies of the loop, the result would depend on the number of partials of
// a launch.
KVP_DEVICE float fold_sum(float sum, float correction, float w, float from) {
    return add_rounded(mul_rounded(sum, correction), mul_rounded(w, from));
}

// merge folds one partial after the other, so that any number of launches with the same
// partials in the same order gives the same bits. A partial that saw no cell changes
// nothing.
//
//   grid   x: row, y: state
//   block  128 threads over the elements
KVP_GLOBAL(merge_block) void merge(merge_args a) {
    const uint64_t row = block_x();
    const uint64_t behind = (uint64_t) block_y() * a.apart * a.rows;
    a.from = {a.from.m + behind, a.from.l + behind, a.from.acc + behind * a.dv};
    a.state = {a.state.m + behind, a.state.l + behind, a.state.acc + behind * a.dv};
    const float m_old = a.state.m[row];
    float l = a.state.l[row], m = m_old;
    // All threads have read the state's m before it changes.
    KVP_BARRIER();
    if (thread_index() == 0) {
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.step * a.rows + row;
            const float m_new = larger(a.from.m[from], m);
            l = fold_sum(l, weight(m, m_new), weight(a.from.m[from], m_new), a.from.l[from]);
            m = m_new;
        }
        a.state.m[row] = m;
        a.state.l[row] = l;
    }
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        float acc = a.state.acc[row * a.dv + d];
        m = m_old;
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.step * a.rows + row;
            const float m_new = larger(a.from.m[from], m);
            const float w = weight(a.from.m[from], m_new);
            if (w != 0.0f) {
                acc = fold_sum(acc, weight(m, m_new), w, a.from.acc[from * a.dv + d]);
            }
            m = m_new;
        }
        a.state.acc[row * a.dv + d] = acc;
    }
}

// clear makes a state empty. Grid: x: row.
KVP_GLOBAL(merge_block) void clear(merge_args a) {
    const uint64_t row = block_x();
    if (thread_index() == 0) {
        a.state.m[row] = minus_infinity();
        a.state.l[row] = 0.0f;
    }
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        a.state.acc[row * a.dv + d] = 0.0f;
    }
}

// finish divides, with the sink in the denominator. Grid: x: row.
KVP_GLOBAL(merge_block) void finish(finish_args a) {
    const uint64_t row = block_x();
    const float m = a.state.m[row];
    float l = a.state.l[row], correction = 1.0f;
    if (a.sinks && l > 0.0f) {
        const float sink = a.sinks[row % a.heads];
        const float m_max = larger(sink, m);
        correction = weight(m, m_max);
        l = l * correction + weight(sink, m_max);
    }
    const float f = l > 0.0f ? correction / l : 0.0f;
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        a.out[row * a.dv + d] = l > 0.0f ? a.state.acc[row * a.dv + d] * f : 0.0f;
    }
}

} // namespace KVP_KERNELS
