// Partial results into the running state, and the state into the output. A partial is the
// largest score m, l = sum exp(s - m) and acc = sum exp(s - m) * v of the cells it saw, per
// row; one that saw nothing has m = minus infinity, and l and acc 0.
#pragma once

#include "cuda/portable.cuh"

namespace KVP_KERNELS {

//   grid   x: row
//   block  128 threads over the elements
KVP_GLOBAL(merge_block) void merge(merge_args a) {
    const uint64_t row = block_x();
    float m = a.state.m[row], l = a.state.l[row];
    float top = m;
    for (uint32_t i = 0; i < a.n; ++i) {
        top = larger(a.from.m[(uint64_t) i * a.rows + row], top);
    }
    // Everybody has read the state's m and l before they change.
    KVP_BARRIER();
    const float shrink = weight(m, top);
    if (thread_index() == 0) {
        l *= shrink;
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.rows + row;
            l += weight(a.from.m[from], top) * a.from.l[from];
        }
        a.state.m[row] = top;
        a.state.l[row] = l;
    }
    for (uint32_t d = thread_index(); d < a.dv; d += merge_block) {
        float acc = a.state.acc[row * a.dv + d] * shrink;
        for (uint32_t i = 0; i < a.n; ++i) {
            const uint64_t from = (uint64_t) i * a.rows + row;
            const float w = weight(a.from.m[from], top);
            if (w != 0.0f) {
                acc += w * a.from.acc[from * a.dv + d];
            }
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
