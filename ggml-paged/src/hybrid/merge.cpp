// Partial results of attention on the host, merged by log-sum-exp.
#include <cmath>

#include "hybrid.h"

namespace kvp {

size_t partial_floats(uint32_t rows, uint32_t dv) {
    return (size_t) rows * (2 + (size_t) dv);
}

kvp_partial partial_at(float * block, uint32_t rows, uint32_t dv) {
    return kvp_partial{rows, dv, block, block + rows, block + 2 * (size_t) rows};
}

void partial_clear(const kvp_partial & p) {
    for (uint32_t r = 0; r < p.rows; r++) {
        p.m[r] = -INFINITY;
        p.l[r] = 0;
    }
    const size_t n = (size_t) p.rows * p.dv;
    for (size_t i = 0; i < n; i++) {
        p.acc[i] = 0;
    }
}

static void merge_row(const kvp_partial & into, const kvp_partial & from, uint32_t r) {
    const float from_m = from.m[r];
    const float into_m = into.m[r];
    float *       to   = into.acc + (size_t) r * into.dv;
    const float * acc  = from.acc + (size_t) r * from.dv;
    if (into_m == -INFINITY) {
        into.m[r] = from_m;
        into.l[r] = from.l[r];
        for (uint32_t d = 0; d < into.dv; d++) {
            to[d] = acc[d];
        }
        return;
    }
    // A NaN on either side must not get lost in a comparison: it reaches m or a factor.
    const float m   = from_m > into_m ? from_m : into_m;
    const float old = std::exp(into_m - m);
    const float add = std::exp(from_m - m);
    into.m[r] = m;
    into.l[r] = into.l[r] * old + from.l[r] * add;
    for (uint32_t d = 0; d < into.dv; d++) {
        to[d] = to[d] * old + acc[d] * add;
    }
}

void partial_merge(const kvp_partial & into, const kvp_partial & from) {
    for (uint32_t r = 0; r < into.rows; r++) {
        if (from.m[r] != -INFINITY) {
            merge_row(into, from, r);
        }
    }
}

void partial_finish(const kvp_partial & p, const float * sinks, uint32_t heads, float * out) {
    for (uint32_t r = 0; r < p.rows; r++) {
        const float * acc = p.acc + (size_t) r * p.dv;
        float *       to  = out + (size_t) r * p.dv;
        if (p.m[r] == -INFINITY) {
            for (uint32_t d = 0; d < p.dv; d++) {
                to[d] = 0;
            }
            continue;
        }
        float scale = 1;
        float l     = p.l[r];
        if (sinks != nullptr) {
            const float sink = sinks[r % heads];
            const float m    = sink > p.m[r] ? sink : p.m[r];
            scale            = std::exp(p.m[r] - m);
            l                = l * scale + std::exp(sink - m);
        }
        for (uint32_t d = 0; d < p.dv; d++) {
            to[d] = acc[d] * scale / l;
        }
    }
}

}  // namespace kvp
