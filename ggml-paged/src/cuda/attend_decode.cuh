// Attention of few rows over many cells, bound by the reads of K and V: each row of K and
// V is read once for all rows (query, head of the GQA group) of a block.
//
//   grid   x: page * splits + split, y: KV head, z: tile of R rows
//   block  128 threads; a tile of 128 cells at a time, one thread per cell for the scores,
//          one thread per four elements of V for the sums
//
// K goes through shared memory 32 elements at a time (a block of the quantized types), V a
// few cells at a time, both as floats. Rows of 36 floats keep reads of 16 bytes by
// neighbouring cells in different banks.
#pragma once

#include "cuda/load.cuh"
#include "cuda/score.cuh"

namespace KVP_KERNELS {

// Largest power of two of cells whose V fits the staging area.
constexpr uint32_t largest_v_chunk(uint32_t dv, uint32_t floats) {
    uint32_t n = 1;
    while (2 * n * dv <= floats && 2 * n <= 64) {
        n *= 2;
    }
    return n;
}

template <uint32_t DK, uint32_t DV, uint32_t R>
struct decode_shape {
    static constexpr uint32_t qk_chunk  = 32;                             // elements of Q and K at a time
    static constexpr uint32_t stride    = qk_chunk + 4;
    static constexpr uint32_t staging   = decode_block * stride;
    static constexpr uint32_t v_chunk   = largest_v_chunk(DV, staging);   // cells of V at a time
    static constexpr uint32_t v_vectors = DV / 4;                         // float4 of a row of V
    static constexpr uint32_t thread_groups   = decode_block / v_vectors; // groups with a thread per vector
    static constexpr uint32_t rows_per_thread = (R + thread_groups - 1) / thread_groups;
    static constexpr uint32_t groups_per_row  = thread_groups / R ? thread_groups / R : 1;
};

template <uint32_t DK, uint32_t DV, uint32_t R>
struct decode_shared {
    using shape = decode_shape<DK, DV, R>;
    alignas(16) float staging[shape::staging];
    alignas(16) float q[R * shape::qk_chunk];
    float    p[R * decode_block];
    float    m[R], l[R], correction[R];
    row_desc rows[R];
    uint32_t seen[decode_block];  // bits of cells that some row sees
};

template <uint32_t DK, uint32_t DV, uint32_t R>
struct decode {
    using shape  = decode_shape<DK, DV, R>;
    using memory = decode_shared<DK, DV, R>;

    // A thread's part of the sums over V: elements 4*vector.., rows row, row +
    // thread_groups.., every groups_per_row-th cell from cell on.
    struct place {
        uint32_t vector, row, cell;
        bool     active;
    };

    KVP_DEVICE place find_place() {
        const uint32_t group = thread_index() / shape::v_vectors;
        place at;
        at.vector = thread_index() % shape::v_vectors;
        at.active = group < shape::thread_groups && group < R * shape::groups_per_row;
        at.row = shape::groups_per_row > 1 ? group % R : group;
        at.cell = shape::groups_per_row > 1 ? group / R : 0;
        return at;
    }

    // The rows that see this thread's cell, as bits; false if no row sees any cell.
    KVP_DEVICE bool find_visible(const attend_args & a, const page_desc & page, memory & s, uint32_t c0, int32_t pos,
                                 uint32_t * visible) {
        uint32_t bits = 0;
        if (*visible) {
            const uint64_t seqs = a.seqs[page.metadata + c0 + thread_index()];
            KVP_UNROLL
            for (uint32_t r = 0; r < R; ++r) {
                bits |= sees(s.rows[r], pos, seqs) ? 1u << r : 0u;
            }
        }
        s.seen[thread_index()] = bits;
        *visible = bits;
        return KVP_BARRIER_OR(bits != 0);
    }

    // The products of this thread's cell with all rows.
    KVP_DEVICE void dot_qk(const attend_args & a, memory & s, const uint8_t * k, uint32_t kv_head,
                           uint32_t first_row, uint32_t cells, float * out) {
        const uint64_t cell_bytes = (uint64_t) a.kv_heads * a.row_k;
        KVP_UNROLL
        for (uint32_t r = 0; r < R; ++r) {
            out[r] = 0.0f;
        }
        for (uint32_t d0 = 0; d0 < DK; d0 += shape::qk_chunk) {
            const uint32_t n = DK - d0 < shape::qk_chunk ? DK - d0 : shape::qk_chunk;
            KVP_UNROLL
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t job = i * decode_block + thread_index();
                const uint32_t cell = job / 4, e = job % 4 * 8;
                if (e < n && cell < cells) {
                    float x[8];
                    load8(a.type_k, k + cell * cell_bytes, d0 + e, x);
                    float4_t * to = (float4_t *) (s.staging + cell * shape::stride + e);
                    to[0] = {x[0], x[1], x[2], x[3]};
                    to[1] = {x[4], x[5], x[6], x[7]};
                }
            }
            for (uint32_t job = thread_index(); job < R * shape::qk_chunk; job += decode_block) {
                const uint32_t r = job / shape::qk_chunk, e = job % shape::qk_chunk;
                if (e < n) {
                    s.q[job] = s.rows[r].active ? row_q(a, kv_head, first_row + r)[d0 + e] : 0.0f;
                }
            }
            KVP_BARRIER();
            if (thread_index() < cells) {
                const float4_t * row = (const float4_t *) (s.staging + thread_index() * shape::stride);
                for (uint32_t e = 0; e < n / 4; ++e) {
                    const float4_t x = row[e];
                    KVP_UNROLL
                    for (uint32_t r = 0; r < R; ++r) {
                        const float4_t y = ((const float4_t *) (s.q + r * shape::qk_chunk))[e];
                        out[r] += x.x * y.x;
                        out[r] += x.y * y.y;
                        out[r] += x.z * y.z;
                        out[r] += x.w * y.w;
                    }
                }
            }
            KVP_BARRIER();
        }
    }

    // A warp takes every fourth row: new maximum, weights, correction of older sums.
    KVP_DEVICE void online_softmax(memory & s) {
        const uint32_t warp = thread_index() / 32, lane = thread_index() % 32;
        for (uint32_t r = warp; r < R; r += decode_block / 32) {
            float x[decode_block / 32];
            float m = s.m[r];
            KVP_UNROLL
            for (uint32_t i = 0; i < decode_block / 32; ++i) {
                x[i] = s.p[r * decode_block + i * 32 + lane];
                m = larger(x[i], m);
            }
            KVP_UNROLL
            for (int o = 16; o > 0; o /= 2) {
                m = larger(shuffle_xor(m, o), m);
            }
            float l = 0.0f;
            KVP_UNROLL
            for (uint32_t i = 0; i < decode_block / 32; ++i) {
                const float w = weight(x[i], m);
                s.p[r * decode_block + i * 32 + lane] = w;
                l += w;
            }
            KVP_UNROLL
            for (int o = 16; o > 0; o /= 2) {
                l += shuffle_xor(l, o);
            }
            warp_barrier();  // every lane has read the maximum that lane 0 replaces
            if (lane == 0) {
                const float correction = weight(s.m[r], m);
                s.correction[r] = correction;
                s.l[r] = s.l[r] * correction + l;
                s.m[r] = m;
            }
        }
    }

    // GUARD leaves out products with weight 0, which an infinity in V would turn into NaN.
    template <bool GUARD>
    KVP_DEVICE void add_cells(const memory & s, const place & at, uint32_t c0, uint32_t n, float4_t * acc) {
        const float4_t * v = (const float4_t *) s.staging + at.vector;
        for (uint32_t c = at.cell; c < n; c += shape::groups_per_row) {
            const float4_t x = v[c * shape::v_vectors];
            KVP_UNROLL
            for (uint32_t i = 0; i < shape::rows_per_thread; ++i) {
                const uint32_t r = at.row + i * shape::thread_groups;
                if (R % shape::thread_groups && r >= R) {
                    break;
                }
                const float p = s.p[r * decode_block + c0 + c];
                if (GUARD && p == 0.0f) {
                    continue;
                }
                acc[i].x += p * x.x;
                acc[i].y += p * x.y;
                acc[i].z += p * x.z;
                acc[i].w += p * x.w;
            }
        }
    }

    // v_nonfinite: V has had an infinity or NaN in a cell that some rows see and others do not.
    KVP_DEVICE void accumulate_pv(const attend_args & a, memory & s, const place & at, const uint8_t * v, uint32_t cells,
                                  bool full, bool & v_nonfinite, float4_t * acc) {
        const uint64_t cell_bytes = (uint64_t) a.kv_heads * a.row_v;
        if (at.active) {
            KVP_UNROLL
            for (uint32_t i = 0; i < shape::rows_per_thread; ++i) {
                const uint32_t r = at.row + i * shape::thread_groups;
                const float f = r < R ? s.correction[r] : 0.0f;
                acc[i] = {acc[i].x * f, acc[i].y * f, acc[i].z * f, acc[i].w * f};
            }
        }
        for (uint32_t c0 = 0; c0 < cells; c0 += shape::v_chunk) {
            const uint32_t n = cells - c0 < shape::v_chunk ? cells - c0 : shape::v_chunk;
            bool found = false;
            for (uint32_t job = thread_index(); job < n * (DV / 8); job += decode_block) {
                const uint32_t cell = job / (DV / 8), e = job % (DV / 8) * 8;
                float x[8] = {};
                if (full || s.seen[c0 + cell]) {
                    load8(a.type_v, v + (c0 + cell) * cell_bytes, e, x);
                    if (!full) {
                        KVP_UNROLL
                        for (int i = 0; i < 8; ++i) {
                            found |= !is_finite(x[i]);
                        }
                    }
                }
                float4_t * to = (float4_t *) (s.staging + cell * DV + e);
                to[0] = {x[0], x[1], x[2], x[3]};
                to[1] = {x[4], x[5], x[6], x[7]};
            }
            v_nonfinite |= KVP_BARRIER_OR(found);
            if (at.active) {
                if (v_nonfinite) {
                    add_cells<true>(s, at, c0, n, acc);
                } else {
                    add_cells<false>(s, at, c0, n, acc);
                }
            }
            KVP_BARRIER();
        }
    }

    // Threads that share a row sum up through the staging area; the first of them writes.
    KVP_DEVICE void write(const attend_args & a, memory & s, const place & at, uint64_t block, float4_t * acc) {
        if (shape::groups_per_row > 1) {
            float4_t * all = (float4_t *) s.staging;
            if (at.active) {
                all[(at.cell * R + at.row) * shape::v_vectors + at.vector] = acc[0];
            }
            KVP_BARRIER();
            if (at.active && at.cell == 0) {
                for (uint32_t i = 1; i < shape::groups_per_row; ++i) {
                    const float4_t x = all[(i * R + at.row) * shape::v_vectors + at.vector];
                    acc[0] = {acc[0].x + x.x, acc[0].y + x.y, acc[0].z + x.z, acc[0].w + x.w};
                }
            }
        }
        if (at.active && at.cell == 0) {
            KVP_UNROLL
            for (uint32_t i = 0; i < shape::rows_per_thread; ++i) {
                const uint32_t r = at.row + i * shape::thread_groups;
                if (r < R && s.rows[r].active) {
                    float4_t * to = (float4_t *) (a.out.acc + (block + s.rows[r].index) * DV);
                    to[at.vector] = acc[i];
                }
            }
        }
        if (thread_index() < R && s.rows[thread_index()].active) {
            const uint64_t to = block + s.rows[thread_index()].index;
            a.out.m[to] = s.m[thread_index()];
            a.out.l[to] = s.l[thread_index()];
        }
    }
};

template <uint32_t DK, uint32_t DV, uint32_t R>
KVP_GLOBAL(decode_block) void attend_decode(attend_args a) {
    using kernel = decode<DK, DV, R>;
    using shape  = decode_shape<DK, DV, R>;
    using memory = decode_shared<DK, DV, R>;
    KVP_SHARED(memory, s);

    const page_desc & page = a.pages[block_x() / a.splits];
    const uint32_t split = block_x() % a.splits, kv_head = block_y(), first_row = block_z() * R;
    const uint32_t begin = split * a.span;
    const uint32_t end = begin + a.span < page.cells ? begin + a.span : page.cells;
    const uint64_t block = a.resume ? 0 : (uint64_t) block_x() * a.n_q * a.heads;

    if (thread_index() < R) {
        const row_desc row = make_row(a, kv_head, first_row + thread_index());
        s.rows[thread_index()] = row;
        s.m[thread_index()] = a.resume && row.active ? a.out.m[row.index] : minus_infinity();
        s.l[thread_index()] = a.resume && row.active ? a.out.l[row.index] : 0.0f;
    }
    KVP_BARRIER();

    const typename kernel::place at = kernel::find_place();
    float4_t acc[shape::rows_per_thread];
    KVP_UNROLL
    for (uint32_t i = 0; i < shape::rows_per_thread; ++i) {
        const uint32_t r = at.row + i * shape::thread_groups;
        acc[i] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (a.resume && at.active && at.cell == 0 && r < R && s.rows[r].active) {
            acc[i] = ((const float4_t *) (a.out.acc + (uint64_t) s.rows[r].index * DV))[at.vector];
        }
    }

    bool v_nonfinite = false;
    for (uint32_t c0 = begin; c0 < end; c0 += decode_block) {
        const uint32_t cells = end - c0 < decode_block ? end - c0 : decode_block;
        int32_t  pos = 0;
        uint32_t visible = thread_index() < cells ? 0xffffffffu : 0;
        if (page.metadata != no_metadata && visible) {
            pos = a.pos[page.metadata + c0 + thread_index()];
        }
        if (!page.full && !kernel::find_visible(a, page, s, c0, pos, &visible)) {
            continue;
        }
        float x[R];
        kernel::dot_qk(a, s, page.k + ((uint64_t) c0 * a.kv_heads + kv_head) * a.row_k, kv_head, first_row, cells, x);
        KVP_UNROLL
        for (uint32_t r = 0; r < R; ++r) {
            s.p[r * decode_block + thread_index()] =
                visible >> r & 1u ? score(a, s.rows[r], x[r], pos) : minus_infinity();
        }
        KVP_BARRIER();
        kernel::online_softmax(s);
        KVP_BARRIER();
        kernel::accumulate_pv(a, s, at, page.v + ((uint64_t) c0 * a.kv_heads + kv_head) * a.row_v, cells, page.full != 0,
                              v_nonfinite, acc);
    }
    kernel::write(a, s, at, block, acc);
}

} // namespace KVP_KERNELS
