// attend_prefill with both products on tensor cores, in products of halves and sums of
// floats (mma_f16).
//
//   grid   as attend_prefill
//   block  256 threads as 8 warps: a warp has 16 rows, and with them its part of the tile's
//          cells for the scores, of V's columns for the sums
//
// Scores have no rounded factor: Q is two halves, the second what the first leaves of it,
// and K the stored halves, or the integers of a quantized block, whose scale multiplies the
// sums over the block. Weights and quantized V round to 11 bits. The sum of weights adds up
// the rounded ones, so each of the two roundings moves a result by at most 2^-11 of max|V|,
// where that is a normal half. Quantized V above 65504, the largest half, is infinite here.
//
// The scores go through shared memory to the threads that make weights of them, which are
// those of attend_prefill.
#pragma once

#include "cuda/attend_prefill.cuh"

namespace KVP_KERNELS {

constexpr uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Strides are of 32-bit words, such that the lanes of a fragment read different banks.
template <uint32_t DK, uint32_t DV>
struct mma_shape {
    static constexpr uint32_t T         = prefill_rows_per_thread(DV);     // of the softmax, and warps side by side
    static constexpr uint32_t rows      = 16 * T;
    static constexpr uint32_t blocks    = DV > 128 ? 1 : 2;                // of a multiprocessor, as sums fit registers
    static constexpr uint32_t parts     = prefill_block / 32 / T;          // warps that share rows
    static constexpr uint32_t qk_chunk  = DK < 128 ? DK : 128;             // elements of K at a time
    static constexpr uint32_t qk_tiles  = prefill_tile / 8 / parts;        // of 8 cells, per warp
    static constexpr uint32_t pv_tiles  = DV / 8 / parts;                  // of 8 columns, per warp
    static constexpr uint32_t k_stride  = qk_chunk / 2 + 4;
    static constexpr uint32_t s_stride  = prefill_tile + 8;
    static constexpr uint32_t p_stride  = prefill_tile / 2 + 4;
    static constexpr uint32_t v_stride  = DV + (40 - DV % 32) % 32;
    static constexpr uint32_t staging   = larger_of(prefill_tile * k_stride, rows * s_stride);
    static constexpr uint32_t v_chunk   = largest_v_chunk(v_stride / 2, staging);  // cells of V at a time
    static_assert(DK % 16 == 0 && DV % (8 * parts) == 0 && v_chunk % 16 == 0, "no whole fragments");
};

template <uint32_t DK, uint32_t DV>
struct mma_shared : prefill_view<mma_shape<DK, DV>::rows> {
    using shape = mma_shape<DK, DV>;
    // K [cell][pair], then scores [row][cell], then V [pair of cells][column]
    alignas(16) uint32_t staging[shape::staging];
    alignas(16) uint32_t p[shape::rows * shape::p_stride];    // weights [row][pair of cells]
    float m[shape::rows], l[shape::rows];                     // of the running softmax
    float correction[shape::rows];                            // of older sums
    float q_factor[shape::rows];                              // brings Q near 1; 0 where there is no row
    float k_scale[(shape::qk_chunk + 31) / 32][prefill_tile];
};

template <uint32_t DK, uint32_t DV>
struct mma_state {
    using shape = mma_shape<DK, DV>;
    float acc[shape::pv_tiles][4];  // times weight_unit
};

// Weights are kept times 2^14, so that those of 2^-28 and more are normal halves.
constexpr float weight_unit = 16384.0f;

KVP_DEVICE uint16_t weight_to_half(float weight) { return float_to_half(weight * weight_unit); }
KVP_DEVICE float weight_of_half(float weight) { return half_to_float(weight_to_half(weight)) * (1.0f / weight_unit); }

// factor_of is a power of two that brings x into [1, 2), or near; inverse_of its inverse.
KVP_DEVICE float factor_of(float x) {
    const uint32_t exponent = float_bits(x) >> 23;
    return bits_float((254 - (exponent < 1 ? 1 : exponent > 253 ? 253 : exponent)) << 23);
}
KVP_DEVICE float inverse_of(float factor) { return bits_float((254u << 23) - float_bits(factor)); }

template <uint32_t DK, uint32_t DV>
struct prefill_mma : prefill_tiles<mma_shape<DK, DV>::T> {
    using shape  = mma_shape<DK, DV>;
    using tiles  = prefill_tiles<shape::T>;
    using memory = mma_shared<DK, DV>;
    using state  = mma_state<DK, DV>;
    static constexpr uint32_t T = shape::T;

    using tiles::my_x;
    using tiles::my_row;

    // A lane's part of the products: its first row, the second being 8 below; the first cell
    // and the first column of its warp; g and t as in mma_f16.
    struct place {
        uint32_t row, cell, column, g, t;
    };

    KVP_DEVICE place find_place() {
        const uint32_t thread = anew(thread_index()), warp = thread / 32;
        place at;
        at.g = thread % 32 / 4;
        at.t = thread % 4;
        at.row = warp % T * 16 + at.g;
        at.cell = warp / T * shape::qk_tiles * 8;
        at.column = warp / T * shape::pv_tiles * 8;
        return at;
    }

    KVP_DEVICE void begin(const attend_args & a, memory & s, uint32_t kv_head, uint32_t first_row, state & t) {
        if (thread_index() < shape::rows) {
            const row_desc row = make_row(a, kv_head, first_row + thread_index());
            s.rows[thread_index()] = row;
            s.m[thread_index()] = a.resume && row.active ? a.out.m[row.index] : minus_infinity();
            s.l[thread_index()] = a.resume && row.active ? a.out.l[row.index] : 0.0f;
        }
        KVP_BARRIER();
        find_factors(a, s, kv_head, first_row);
        const place at = find_place();
        KVP_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
            const row_desc & row = s.rows[at.row + 8 * i];
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::pv_tiles; ++j) {
                floats<2> x = {{0.0f, 0.0f}};
                if (a.resume && row.active) {
                    x = *(const floats<2> *) (a.out.acc + (uint64_t) row.index * DV + at.column + 2 * at.t + 8 * j);
                }
                t.acc[j][2 * i]     = x.x[0] * weight_unit;
                t.acc[j][2 * i + 1] = x.x[1] * weight_unit;
            }
        }
    }

    // Rows of Q near 1 have no half that is too large, and small elements lose nothing that
    // would count beside the large ones.
    KVP_DEVICE void find_factors(const attend_args & a, memory & s, uint32_t kv_head, uint32_t first_row) {
        constexpr uint32_t threads = prefill_block / shape::rows;  // per row
        const uint32_t row = thread_index() / threads;
        float largest = 0.0f;
        if (s.rows[row].active) {
            const float * q = row_q(a, kv_head, first_row + row);
            for (uint32_t d = thread_index() % threads; d < DK; d += threads) {
                largest = larger(q[d] < 0 ? -q[d] : q[d], largest);
            }
        }
        KVP_UNROLL
        for (int o = threads / 2; o > 0; o /= 2) {
            largest = larger(shuffle_xor(largest, o), largest);
        }
        if (thread_index() % threads == 0) {
            s.q_factor[row] = s.rows[row].active ? factor_of(largest) : 0.0f;
        }
    }

    KVP_DEVICE void stage_k(const attend_args & a, memory & s, const uint8_t * k, uint32_t cells, uint32_t d0, uint32_t n) {
        const uint64_t cell_bytes = (uint64_t) a.kv_heads * a.row_k;
        KVP_NO_UNROLL
        for (uint32_t job = anew(thread_index()); job < prefill_tile * (n / 8); job += prefill_block) {
            const uint32_t cell = job / (n / 8), e = job % (n / 8) * 8;
            halves8 x = {};
            float scale = 0.0f;
            if (cell < cells) {
                scale = units8_halves(a.type_k, k + cell * cell_bytes, d0 + e, x);
            }
            *(halves8 *) (s.staging + cell * shape::k_stride + e / 2) = x;
            if (e % 32 == 0) {
                s.k_scale[e / 32][cell] = scale;
            }
        }
    }

    // Two neighbours of a row of Q as two pairs of halves.
    KVP_DEVICE void split_q(const float * q, float factor, uint32_t & high, uint32_t & low) {
        const float x = q[0] * factor, y = q[1] * factor;
        const uint16_t hx = float_to_half(x), hy = float_to_half(y);
        high = pack(hx, hy);
        low = pack(float_to_half(x - half_to_float(hx)), float_to_half(y - half_to_float(hy)));
    }

    // One block of 32 elements, or the 16 that are left of a row.
    KVP_DEVICE void add_block(const memory & s, const place & at, const float * const (&q)[2], const float (&factor)[2],
                              uint32_t b, uint32_t n, float (&sums)[shape::qk_tiles][4]) {
        float block[shape::qk_tiles][4] = {};
        KVP_NO_UNROLL
        for (uint32_t e = b; e < b + 32 && e < n; e += 16) {
            uint32_t high[4], low[4];
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                split_q(q[i % 2] + e + i / 2 * 8, factor[i % 2], high[i], low[i]);
            }
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::qk_tiles; ++j) {
                const uint32_t * k = s.staging + (at.cell + 8 * j + at.g) * shape::k_stride + e / 2 + at.t;
                const uint32_t pairs[2] = {k[0], k[4]};
                mma_f16(block[j], high, pairs);
                mma_f16(block[j], low, pairs);
            }
        }
        KVP_UNROLL
        for (uint32_t j = 0; j < shape::qk_tiles; ++j) {
            const float * scale = s.k_scale[b / 32] + at.cell + 8 * j + 2 * at.t;
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                sums[j][i] += block[j][i] * scale[i % 2];
            }
        }
    }

    KVP_DEVICE void dot_qk(const attend_args & a, memory & s, const uint8_t * k, uint32_t kv_head,
                           uint32_t first_row, uint32_t cells, const state &, float (&x)[T][4]) {
        const place at = find_place();
        float sums[shape::qk_tiles][4] = {};
        const float * q[2];
        float factor[2];
        KVP_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t row = at.row + 8 * i;
            q[i] = row_q(a, kv_head, first_row + (s.rows[row].active ? row : 0)) + 2 * at.t;
            factor[i] = s.q_factor[row];
        }
        KVP_NO_UNROLL
        for (uint32_t d0 = 0; d0 < DK; d0 += shape::qk_chunk) {
            const uint32_t n = DK - d0 < shape::qk_chunk ? DK - d0 : shape::qk_chunk;
            stage_k(a, s, k, cells, d0, n);
            KVP_BARRIER();
            KVP_NO_UNROLL
            for (uint32_t b = 0; b < n; b += 32) {
                add_block(s, at, q, factor, b, n, sums);
            }
            KVP_BARRIER();
            q[0] += shape::qk_chunk;
            q[1] += shape::qk_chunk;
        }
        exchange_scores(s, at, factor, sums, x);
    }

    // From the lanes of fragments to the threads of the softmax.
    KVP_DEVICE void exchange_scores(memory & s, const place & at, const float (&factor)[2],
                                    const float (&sums)[shape::qk_tiles][4], float (&x)[T][4]) {
        float * scores = (float *) s.staging;
        KVP_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
            const float unit = inverse_of(factor[i]);
            float * to = scores + (at.row + 8 * i) * shape::s_stride + at.cell + 2 * at.t;
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::qk_tiles; ++j) {
                *(floats<2> *) (to + 8 * j) = {{sums[j][2 * i] * unit, sums[j][2 * i + 1] * unit}};
            }
        }
        KVP_BARRIER();
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            const float4_t y = *(const float4_t *) (scores + (my_row() + i) * shape::s_stride + 4 * my_x());
            x[i][0] = y.x;
            x[i][1] = y.y;
            x[i][2] = y.z;
            x[i][3] = y.w;
        }
    }

    // Scores to weights in shared memory; m and l are brought to the new maximum.
    KVP_DEVICE void weigh(const attend_args & a, const page_desc & page, memory & s, uint32_t cells,
                          float (&x)[T][4], state &) {
        float m[T], l[T], correction[T];
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            m[i] = s.m[my_row() + i];
            l[i] = s.l[my_row() + i];
        }
        tiles::template online_softmax<weight_of_half>(a, page, s, cells, x, m, l, correction);
        warp_barrier();  // every lane has read the m and l that one of them replaces
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            uint32_t * to = s.p + (my_row() + i) * shape::p_stride + 2 * my_x();
            to[0] = pack(weight_to_half(x[i][0]), weight_to_half(x[i][1]));
            to[1] = pack(weight_to_half(x[i][2]), weight_to_half(x[i][3]));
            if (my_x() == 0) {
                s.m[my_row() + i] = m[i];
                s.l[my_row() + i] = l[i];
                s.correction[my_row() + i] = correction[i];
            }
        }
    }

    // The halves of eight columns of V of a cell, zeros where no row sees it.
    KVP_DEVICE halves8 load_v(const attend_args & a, const page_desc & page, const memory & s, const uint8_t * v,
                              uint32_t c, uint32_t cells, uint32_t e) {
        halves8 x = {};
        if (c < cells && (page.full || (s.seen[c / 32] >> c % 32 & 1u))) {
            x = load8_halves(a.type_v, v + c * ((uint64_t) a.kv_heads * a.row_v), e);
        }
        return x;
    }

    // True if this thread met an infinity or NaN in a cell that perhaps only some rows
    // see.
    KVP_DEVICE bool stage_v(const attend_args & a, const page_desc & page, memory & s, const uint8_t * v,
                            uint32_t c0, uint32_t cells, uint32_t n) {
        bool v_nonfinite = false;
        KVP_NO_UNROLL
        for (uint32_t job = anew(thread_index()); job < n / 2 * (DV / 8); job += prefill_block) {
            const uint32_t c = job / (DV / 8) * 2, e = job % (DV / 8) * 8;
            const halves8 x = load_v(a, page, s, v, c0 + c, cells, e);
            const halves8 y = load_v(a, page, s, v, c0 + c + 1, cells, e);
            halves8 * to = (halves8 *) (s.staging + c / 2 * shape::v_stride + e);
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t first = (x.pair[i] & 0xffffu) | y.pair[i] << 16;
                const uint32_t second = x.pair[i] >> 16 | (y.pair[i] & 0xffff0000u);
                to[i / 2].pair[i % 2 * 2]     = first;
                to[i / 2].pair[i % 2 * 2 + 1] = second;
                v_nonfinite |= !page.full && !(halves_are_finite(first) && halves_are_finite(second));
            }
        }
        return v_nonfinite;
    }

    KVP_DEVICE void add_products(const memory & s, const place & at, uint32_t c0, uint32_t n, state & t) {
        const uint32_t * p = s.p + at.row * shape::p_stride + c0 / 2 + at.t;
        const uint32_t * v = s.staging + at.t * shape::v_stride + at.column + at.g;
        KVP_NO_UNROLL
        for (uint32_t c = 0; c < n; c += 16) {
            const uint32_t w[4] = {p[c / 2], p[c / 2 + 8 * shape::p_stride], p[c / 2 + 4], p[c / 2 + 8 * shape::p_stride + 4]};
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::pv_tiles; ++j) {
                const uint32_t * from = v + c / 2 * shape::v_stride + 8 * j;
                const uint32_t pairs[2] = {from[0], from[4 * shape::v_stride]};
                mma_f16(t.acc[j], w, pairs);
            }
        }
    }

    // Leaves out products with weight 0, which an infinity in V would turn into NaN.
    KVP_DEVICE void add_guarded(const memory & s, const place & at, uint32_t c0, uint32_t n, state & t) {
        KVP_NO_UNROLL
        for (uint32_t c = 0; c < n; ++c) {
            const uint32_t shift = c % 2 * 16;
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t row = at.row + i / 2 * 8;
                const float w = half_to_float((uint16_t) (s.p[row * shape::p_stride + (c0 + c) / 2] >> shift));
                if (w == 0.0f) {
                    continue;
                }
                KVP_UNROLL
                for (uint32_t j = 0; j < shape::pv_tiles; ++j) {
                    const uint32_t pair = s.staging[c / 2 * shape::v_stride + at.column + 2 * at.t + 8 * j + i % 2];
                    t.acc[j][i] += w * half_to_float((uint16_t) (pair >> shift));
                }
            }
        }
    }

    KVP_DEVICE void accumulate_pv(const attend_args & a, const page_desc & page, memory & s, const uint8_t * v,
                                  uint32_t cells, state & t) {
        KVP_BARRIER();
        const place at = find_place();
        KVP_UNROLL
        for (uint32_t j = 0; j < shape::pv_tiles; ++j) {
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                t.acc[j][i] *= s.correction[at.row + i / 2 * 8];
            }
        }
        for (uint32_t c0 = 0; c0 < cells; c0 += shape::v_chunk) {
            const uint32_t left = (cells - c0 + 15) / 16 * 16;
            const uint32_t n = left < shape::v_chunk ? left : shape::v_chunk;
            if (KVP_BARRIER_OR(stage_v(a, page, s, v, c0, cells, n))) {
                add_guarded(s, at, c0, n, t);
            } else {
                add_products(s, at, c0, n, t);
            }
            KVP_BARRIER();
        }
    }

    KVP_DEVICE void write(const attend_args & a, const memory & s, uint64_t block, const state & t) {
        if (thread_index() < shape::rows && s.rows[thread_index()].active) {
            const uint64_t to = block + s.rows[thread_index()].index;
            a.out.m[to] = s.m[thread_index()];
            a.out.l[to] = s.l[thread_index()];
        }
        const place at = find_place();
        KVP_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
            const row_desc & row = s.rows[at.row + 8 * i];
            if (!row.active) {
                continue;
            }
            float * to = a.out.acc + (block + row.index) * DV + at.column + 2 * at.t;
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::pv_tiles; ++j) {
                constexpr float unit = 1.0f / weight_unit;
                *(floats<2> *) (to + 8 * j) = {{t.acc[j][2 * i] * unit, t.acc[j][2 * i + 1] * unit}};
            }
        }
    }
};

// Only launched where the code was compiled for tensor cores.
template <uint32_t DK, uint32_t DV>
KVP_GLOBAL_OF(prefill_block, (mma_shape<DK, DV>::blocks)) void attend_prefill_mma(attend_args a) {
#if KVP_HAS_MMA
    using memory = mma_shared<DK, DV>;
    KVP_SHARED(memory, s);
    attend_tiles<prefill_mma<DK, DV>>(a, s);
#else
    (void) a;
    stop();
#endif
}

} // namespace KVP_KERNELS
