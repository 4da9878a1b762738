// Attention of many rows, bound by arithmetic: a block has a tile of rows (query, head of
// the GQA group) of one KV head and goes over the cells of its split 64 at a time.
//
//   grid   x: page * splits + split, y: KV head, z: tile of rows
//   block  256 threads as 16 x 16: thread (y, x) has rows T*y .. T*y+T-1, cells 4x .. 4x+3
//          of the scores, and every 16th group of four elements of the sums
//
// Both products are outer products in registers of operands that come from shared memory
// in 16 byte reads, so Q, K and the weights are kept there with rows (cells) innermost. A
// thread has the same rows in both products, so maxima and sums of a row stay in registers
// and are exchanged by shuffles among 16 neighbours.
//
// attend_prefill_mma.cuh has the same with both products on tensor cores.
#pragma once

#include "cuda/attend_decode.cuh"

namespace KVP_KERNELS {

// The rows of a block, the cells of a tile, and which row sees which cell: in shared memory.
template <uint32_t ROWS>
struct prefill_view {
    row_desc rows[ROWS];
    int32_t  pos[prefill_tile];
    uint64_t seqs[prefill_tile];
    uint16_t visible[ROWS][4];         // bits of 16 cells each
    uint32_t seen[prefill_tile / 32];  // cells that some row sees
};

KVP_DEVICE float same(float weight) { return weight; }

// What both kernels of prefill do with T rows and 4 cells of the scores per thread.
template <uint32_t T>
struct prefill_tiles {
    using view = prefill_view<16 * T>;
    static constexpr uint32_t rows = 16 * T;

    KVP_DEVICE uint32_t my_x() { return anew(thread_index()) % 16; }
    KVP_DEVICE uint32_t my_row() { return anew(thread_index()) / 16 * T; }

    // Metadata of the tile, and the views of its rows; false where no row sees any cell.
    KVP_DEVICE bool find_visible(const attend_args & a, const page_desc & page, view & s, uint32_t c0, uint32_t cells) {
        const uint32_t t = thread_index();
        if (t < prefill_tile && page.metadata != no_metadata) {
            s.pos[t] = t < cells ? a.pos[page.metadata + c0 + t] : 0;
            s.seqs[t] = t < cells && !page.full ? a.seqs[page.metadata + c0 + t] : 0;
        }
        if (t < prefill_tile / 32) {
            s.seen[t] = 0;
        }
        KVP_BARRIER();
        if (page.full) {
            return true;
        }
        const uint32_t row = t / 4, part = t % 4;
        uint32_t bits = 0;
        if (row < rows) {
            const row_desc r = s.rows[row];
            for (uint32_t i = 0; i < 16; ++i) {
                const uint32_t c = part * 16 + i;
                bits |= c < cells && sees(r, s.pos[c], s.seqs[c]) ? 1u << i : 0u;
            }
            s.visible[row][part] = (uint16_t) bits;
            if (bits) {
                or_shared(&s.seen[part / 2], bits << part % 2 * 16);
            }
        }
        return KVP_BARRIER_OR(bits != 0);
    }

    // Scores to weights, as KEEP returns them; m and l are brought to the new maximum, and
    // correction is what older sums are to be multiplied by.
    template <float KEEP(float)>
    KVP_DEVICE void online_softmax(const attend_args & a, const page_desc & page, const view & s, uint32_t cells,
                                   float (&x)[T][4], float (&m_of)[T], float (&l_of)[T], float (&correction)[T]) {
        const bool positions = page.metadata != no_metadata;
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            const uint32_t row = my_row() + i;
            const uint32_t bits = page.full ? 0xfu : (uint32_t) s.visible[row][my_x() / 4] >> my_x() % 4 * 4;
            float m = m_of[i];
            KVP_UNROLL
            for (uint32_t j = 0; j < 4; ++j) {
                const uint32_t c = 4 * my_x() + j;
                const bool sees_it = c < cells && (bits >> j & 1u);
                x[i][j] = sees_it ? score(a, s.rows[row], x[i][j], positions ? s.pos[c] : 0) : minus_infinity();
                m = larger(x[i][j], m);
            }
            KVP_UNROLL
            for (int o = 8; o > 0; o /= 2) {
                m = larger(shuffle_xor(m, o), m);
            }
            float l = 0.0f;
            KVP_UNROLL
            for (uint32_t j = 0; j < 4; ++j) {
                x[i][j] = KEEP(weight(x[i][j], m));
                l += x[i][j];
            }
            KVP_UNROLL
            for (int o = 8; o > 0; o /= 2) {
                l += shuffle_xor(l, o);
            }
            correction[i] = weight(m_of[i], m);
            l_of[i] = l_of[i] * correction[i] + l;
            m_of[i] = m;
        }
    }
};

template <uint32_t DK, uint32_t DV>
struct prefill_shape {
    static constexpr uint32_t T      = prefill_rows_per_thread(DV);
    static constexpr uint32_t rows   = 16 * T;
    static constexpr uint32_t cells  = prefill_tile;
    static constexpr uint32_t qk_chunk = 32;                              // elements of Q and K at a time
    static constexpr uint32_t k_stride = cells + 4;
    static constexpr uint32_t q_stride = rows + 4;
    static constexpr uint32_t staging  = qk_chunk * (k_stride + q_stride);
    static constexpr uint32_t v_chunk  = largest_v_chunk(DV, staging);    // cells of V at a time
    static constexpr uint32_t v_vectors = DV / 4;                         // float4 of a row of V
    static constexpr uint32_t vectors_per_thread = (v_vectors + 15) / 16;
};

template <uint32_t DK, uint32_t DV>
struct prefill_shared : prefill_view<prefill_shape<DK, DV>::rows> {
    using shape = prefill_shape<DK, DV>;
    alignas(16) float staging[shape::staging];               // K and Q, then V
    alignas(16) float p[shape::cells * shape::q_stride];     // weights [cell][row]
};

// The running softmax of a thread: T rows, vectors_per_thread vectors of acc.
template <uint32_t DK, uint32_t DV>
struct prefill_state {
    using shape = prefill_shape<DK, DV>;
    float    m[shape::T], l[shape::T];
    float4_t acc[shape::T][shape::vectors_per_thread];
    bool     v_nonfinite;  // V has had an infinity or NaN in a cell that some rows see and others do not
};

template <uint32_t DK, uint32_t DV>
struct prefill : prefill_tiles<prefill_shape<DK, DV>::T> {
    using shape  = prefill_shape<DK, DV>;
    using tiles  = prefill_tiles<shape::T>;
    using memory = prefill_shared<DK, DV>;
    using state  = prefill_state<DK, DV>;
    static constexpr uint32_t T = shape::T;

    using tiles::my_x;
    using tiles::my_row;
    KVP_DEVICE uint32_t my_vector(uint32_t i) { return my_x() + 16 * i; }

    KVP_DEVICE void begin(const attend_args & a, memory & s, uint32_t kv_head, uint32_t first_row, state & t) {
        if (thread_index() < shape::rows) {
            s.rows[thread_index()] = make_row(a, kv_head, first_row + thread_index());
        }
        t.v_nonfinite = false;
        KVP_BARRIER();
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            const row_desc & row = s.rows[my_row() + i];
            const bool load = a.resume && row.active;
            t.m[i] = load ? a.out.m[row.index] : minus_infinity();
            t.l[i] = load ? a.out.l[row.index] : 0.0f;
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::vectors_per_thread; ++j) {
                t.acc[i][j] = {0.0f, 0.0f, 0.0f, 0.0f};
                if (load && my_vector(j) < shape::v_vectors) {
                    t.acc[i][j] = ((const float4_t *) (a.out.acc + (uint64_t) row.index * DV))[my_vector(j)];
                }
            }
        }
    }

    KVP_DEVICE void stage_qk(const attend_args & a, memory & s, const uint8_t * k, uint32_t kv_head,
                             uint32_t first_row, uint32_t cells, uint32_t d0, uint32_t n) {
        const uint64_t cell_bytes = (uint64_t) a.kv_heads * a.row_k;
        float * ks = s.staging;
        float * qs = s.staging + shape::qk_chunk * shape::k_stride;
        const uint32_t cell = thread_index() % shape::cells, e = thread_index() / shape::cells * 8;
        if (e < n) {
            float x[8] = {};
            if (cell < cells) {
                load8(a.type_k, k + cell * cell_bytes, d0 + e, x);
            }
            KVP_UNROLL
            for (uint32_t i = 0; i < 8; ++i) {
                ks[(e + i) * shape::k_stride + cell] = x[i];
            }
        }
        for (uint32_t job = thread_index(); job < shape::rows * 8; job += prefill_block) {
            const uint32_t row = job % shape::rows, element = job / shape::rows * 4;
            if (element < n) {
                float4_t x = {0.0f, 0.0f, 0.0f, 0.0f};
                if (s.rows[row].active) {
                    const float * from = row_q(a, kv_head, first_row + row) + d0 + element;
                    x = {from[0], from[1], from[2], from[3]};
                }
                qs[(element + 0) * shape::q_stride + row] = x.x;
                qs[(element + 1) * shape::q_stride + row] = x.y;
                qs[(element + 2) * shape::q_stride + row] = x.z;
                qs[(element + 3) * shape::q_stride + row] = x.w;
            }
        }
    }

    KVP_DEVICE void dot_qk(const attend_args & a, memory & s, const uint8_t * k, uint32_t kv_head,
                           uint32_t first_row, uint32_t cells, const state &, float (&x)[T][4]) {
        const float * ks = s.staging + 4 * my_x();
        const float * qs = s.staging + shape::qk_chunk * shape::k_stride + my_row();
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
        }
        for (uint32_t d0 = 0; d0 < DK; d0 += shape::qk_chunk) {
            const uint32_t n = DK - d0 < shape::qk_chunk ? DK - d0 : shape::qk_chunk;
            stage_qk(a, s, k, kv_head, first_row, cells, d0, n);
            KVP_BARRIER();
            KVP_UNROLL_4
            for (uint32_t e = 0; e < n; ++e) {
                const float4_t y = *(const float4_t *) (ks + e * shape::k_stride);
                const floats<T> q = *(const floats<T> *) (qs + e * shape::q_stride);
                KVP_UNROLL
                for (uint32_t i = 0; i < T; ++i) {
                    x[i][0] += q.x[i] * y.x;
                    x[i][1] += q.x[i] * y.y;
                    x[i][2] += q.x[i] * y.z;
                    x[i][3] += q.x[i] * y.w;
                }
            }
            KVP_BARRIER();
        }
    }

    // Scores to weights in shared memory; m, l and acc are brought to the new maximum.
    KVP_DEVICE void weigh(const attend_args & a, const page_desc & page, memory & s, uint32_t cells,
                          float (&x)[T][4], state & t) {
        float correction[T];
        tiles::template online_softmax<same>(a, page, s, cells, x, t.m, t.l, correction);
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::vectors_per_thread; ++j) {
                float4_t & c = t.acc[i][j];
                c = {c.x * correction[i], c.y * correction[i], c.z * correction[i], c.w * correction[i]};
            }
        }
        KVP_UNROLL
        for (uint32_t j = 0; j < 4; ++j) {
            floats<T> column;
            KVP_UNROLL
            for (uint32_t i = 0; i < T; ++i) {
                column.x[i] = x[i][j];
            }
            *(floats<T> *) (s.p + (4 * my_x() + j) * shape::q_stride + my_row()) = column;
        }
    }

    // True if this thread met an infinity or NaN in a cell that perhaps only some rows
    // see.
    KVP_DEVICE bool stage_v(const attend_args & a, const page_desc & page, memory & s, const uint8_t * v,
                            uint32_t c0, uint32_t n) {
        const uint64_t cell_bytes = (uint64_t) a.kv_heads * a.row_v;
        bool v_nonfinite = false;
        for (uint32_t job = thread_index(); job < n * (DV / 8); job += prefill_block) {
            const uint32_t c = job / (DV / 8), e = job % (DV / 8) * 8;
            float x[8] = {};
            if (page.full || (s.seen[(c0 + c) / 32] >> (c0 + c) % 32 & 1u)) {
                load8(a.type_v, v + (c0 + c) * cell_bytes, e, x);
                if (!page.full) {
                    KVP_UNROLL
                    for (int i = 0; i < 8; ++i) {
                        v_nonfinite |= !is_finite(x[i]);
                    }
                }
            }
            float4_t * to = (float4_t *) (s.staging + c * DV + e);
            to[0] = {x[0], x[1], x[2], x[3]};
            to[1] = {x[4], x[5], x[6], x[7]};
        }
        return v_nonfinite;
    }

    // GUARD leaves out products with weight 0, which an infinity in V would turn into NaN.
    template <bool GUARD>
    KVP_DEVICE void add_cells(const memory & s, uint32_t c0, uint32_t n, state & t) {
        for (uint32_t c = 0; c < n; ++c) {
            const floats<T> w = *(const floats<T> *) (s.p + (c0 + c) * shape::q_stride + my_row());
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::vectors_per_thread; ++j) {
                if (shape::v_vectors % 16 && my_vector(j) >= shape::v_vectors) {
                    continue;
                }
                const float4_t x = ((const float4_t *) (s.staging + c * DV))[my_vector(j)];
                KVP_UNROLL
                for (uint32_t i = 0; i < T; ++i) {
                    if (GUARD && w.x[i] == 0.0f) {
                        continue;
                    }
                    t.acc[i][j].x += w.x[i] * x.x;
                    t.acc[i][j].y += w.x[i] * x.y;
                    t.acc[i][j].z += w.x[i] * x.z;
                    t.acc[i][j].w += w.x[i] * x.w;
                }
            }
        }
    }

    // The first barrier orders the weights, too, because V is staged before it.
    KVP_DEVICE void accumulate_pv(const attend_args & a, const page_desc & page, memory & s, const uint8_t * v,
                                  uint32_t cells, state & t) {
        for (uint32_t c0 = 0; c0 < cells; c0 += shape::v_chunk) {
            const uint32_t n = cells - c0 < shape::v_chunk ? cells - c0 : shape::v_chunk;
            t.v_nonfinite |= KVP_BARRIER_OR(stage_v(a, page, s, v, c0, n));
            if (t.v_nonfinite) {
                add_cells<true>(s, c0, n, t);
            } else {
                add_cells<false>(s, c0, n, t);
            }
            KVP_BARRIER();
        }
    }

    KVP_DEVICE void write(const attend_args & a, const memory & s, uint64_t block, const state & t) {
        KVP_UNROLL
        for (uint32_t i = 0; i < T; ++i) {
            const row_desc & row = s.rows[my_row() + i];
            if (!row.active) {
                continue;
            }
            if (my_x() == 0) {
                a.out.m[block + row.index] = t.m[i];
                a.out.l[block + row.index] = t.l[i];
            }
            KVP_UNROLL
            for (uint32_t j = 0; j < shape::vectors_per_thread; ++j) {
                if (my_vector(j) < shape::v_vectors) {
                    ((float4_t *) (a.out.acc + (block + row.index) * DV))[my_vector(j)] = t.acc[i][j];
                }
            }
        }
    }
};

// attend_tiles goes over the cells of a block's split with either kernel.
template <class KERNEL>
KVP_DEVICE void attend_tiles(const attend_args & a, typename KERNEL::memory & s) {
    const page_desc & page = a.pages[block_x() / a.splits];
    const uint32_t kv_head = block_y(), first_row = block_z() * KERNEL::rows;
    const uint32_t begin = block_x() % a.splits * a.span;
    const uint32_t end = begin + a.span < page.cells ? begin + a.span : page.cells;
    const uint64_t block = a.resume ? 0 : (uint64_t) block_x() * a.n_q * a.heads;

    typename KERNEL::state t;
    KERNEL::begin(a, s, kv_head, first_row, t);
    for (uint32_t c0 = begin; c0 < end; c0 += prefill_tile) {
        const uint32_t cells = end - c0 < prefill_tile ? end - c0 : prefill_tile;
        if (!KERNEL::find_visible(a, page, s, c0, cells)) {
            continue;
        }
        float x[KERNEL::T][4];
        KERNEL::dot_qk(a, s, page.k + ((uint64_t) c0 * a.kv_heads + kv_head) * a.row_k, kv_head, first_row, cells, t, x);
        KERNEL::weigh(a, page, s, cells, x, t);
        KERNEL::accumulate_pv(a, page, s, page.v + ((uint64_t) c0 * a.kv_heads + kv_head) * a.row_v, cells, t);
    }
    KERNEL::write(a, s, block, t);
}

template <uint32_t DK, uint32_t DV>
KVP_GLOBAL(prefill_block) void attend_prefill(attend_args a) {
    using memory = prefill_shared<DK, DV>;
    KVP_SHARED(memory, s);
    attend_tiles<prefill<DK, DV>>(a, s);
}

} // namespace KVP_KERNELS
