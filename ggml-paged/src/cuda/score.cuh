// From a product of Q and K to a score: the views of queries, the soft cap, ALiBi.
#pragma once

#include "cuda/portable.cuh"

namespace KVP_KERNELS {

// A row of a block: one query with one head of the block's group.
struct row_desc {
    int32_t  lo, hi, pos;
    uint32_t seq;
    float    slope;
    uint32_t index;   // of its partial: query * heads + head
    uint32_t active;  // 0: past the last row
    uint32_t query;
};

KVP_DEVICE row_desc make_row(const attend_args & a, uint32_t kv_head, uint32_t row) {
    row_desc r = {};
    r.active = row < a.n_q * a.group;
    const uint32_t safe = r.active ? row : 0;
    r.query = safe / a.group;
    const uint32_t head = kv_head * a.group + safe % a.group;
    const query_desc q = a.queries[r.query];
    r.lo = q.lo;
    r.hi = q.hi;
    r.pos = q.pos;
    r.seq = q.seq;
    r.slope = a.slopes ? a.slopes[head] : 0.0f;
    r.index = r.query * a.heads + head;
    return r;
}

KVP_DEVICE const float * row_q(const attend_args & a, uint32_t kv_head, uint32_t row) {
    const uint32_t head = kv_head * a.group + row % a.group;
    return a.q + (int64_t) (row / a.group) * a.q_stride + (int64_t) head * a.q_head_stride;
}

KVP_DEVICE bool sees(const row_desc & r, int32_t pos, uint64_t seqs) {
    return r.active && ((seqs >> r.seq) & 1u) && pos >= r.lo && pos <= r.hi;
}

// score is the score of a visible cell. ALiBi leaves cells after the query alone.
KVP_DEVICE float score(const attend_args & a, const row_desc & r, float product, int32_t pos) {
    float s = product * a.scale;
    if (a.softcap > 0.0f) {
        s = a.softcap * tanh_smooth(s / a.softcap);
    }
    if (a.slopes && pos <= r.pos) {
        s -= r.slope * (float) ((uint32_t) r.pos - (uint32_t) pos);
    }
    return s;
}

} // namespace KVP_KERNELS
