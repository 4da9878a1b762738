// Partial results into the running state, and the state into the output. A partial is the
// largest score m, l = sum exp(s - m) and acc = sum exp(s - m) * v of the cells it saw, per
// row; one that saw nothing has m = minus infinity, and l and acc 0.
#pragma once

#include "cuda/portable.cuh"

namespace KVP_KERNELS {

// fold_sum adds a partial's sum to the state's. Each step rounds on its own: a compiler that
// fused some copies of the loop and not others would make the result depend on how many
// partials a launch has.
KVP_DEVICE float fold_sum(float sum, float shrink, float w, float from) {
    return add_rounded(mul_rounded(sum, shrink), mul_rounded(w, from));
}

// merge folds one partial after the other, so that any number of launches with the same
// partials in the same order gives the same bits. One that saw nothing changes nothing.
//
//   grid   x: row
//   block  128 threads over the elements
KVP_GLOBAL(merge_block) void merge(merge_args a) {
    const uint64_t row = block_x();
    const float m = a.state.m[row];
    float l = a.state.l[row], top = m;
    // Everybody has read the state's m before it changes.
    KVP_BARRIER();
    if (thread_index() == 0) {
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.rows + row;
            const float next = larger(a.from.m[from], top);
            l = fold_sum(l, weight(top, next), weight(a.from.m[from], next), a.from.l[from]);
            top = next;
        }
        a.state.m[row] = top;
        a.state.l[row] = l;
    }
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        float acc = a.state.acc[row * a.dv + d];
        top = m;
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.rows + row;
            const float next = larger(a.from.m[from], top);
            const float w = weight(a.from.m[from], next);
            if (w != 0.0f) {
                acc = fold_sum(acc, weight(top, next), w, a.from.acc[from * a.dv + d]);
            }
            top = next;
        }
        a.state.acc[row * a.dv + d] = acc;
    }
}

// clear makes a state empty. Same grid.
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

// finish divides, with the sink in the denominator. Same grid.
KVP_GLOBAL(merge_block) void finish(finish_args a) {
    const uint64_t row = block_x();
    const float m = a.state.m[row];
    float l = a.state.l[row], shrink = 1.0f;
    if (a.sinks && l > 0.0f) {
        const float sink = a.sinks[row % a.heads];
        const float top = larger(sink, m);
        shrink = weight(m, top);
        l = l * shrink + weight(sink, top);
    }
    const float f = l > 0.0f ? shrink / l : 0.0f;
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        a.out[row * a.dv + d] = l > 0.0f ? a.state.acc[row * a.dv + d] * f : 0.0f;
    }
}

} // namespace KVP_KERNELS
