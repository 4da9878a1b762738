#include "attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#define KVP_EMULATED 1
#include "cuda/dispatch.cuh"
#include "cuda/kernels.cuh"
#include "cuda/metadata.h"

namespace {

uint32_t row_bytes(int type, uint32_t n) { return uint32_t(kvp_row_bytes(type, n)); }

// NaN or infinity in all of a row: in the halves, or in the scales of its blocks.
void poison_row(int type, uint8_t * row, uint32_t bytes, uint16_t half) {
    const uint32_t step = type == KVP_F16 ? 2 : type == KVP_Q8_0 ? 34 : 18;
    for (uint32_t i = 0; i < bytes; i += step) {
        std::memcpy(row + i, &half, 2);
    }
}

void fill_rows(std::mt19937_64 & random, int type, uint32_t n, float mean, float size, std::vector<uint8_t> & bytes, uint32_t row) {
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (size_t at = 0; at < bytes.size(); at += row) {
        for (float & f : x) {
            f = mean + size * normal(random);
        }
        kvp_quantize_row(type, x.data(), bytes.data() + at, n);
    }
}

} // namespace

attention_case::attention_case(const case_shape & s) : shape(s) {
    std::mt19937_64 random(s.seed);
    heads = s.kv_heads * s.group;
    row_k = row_bytes(s.type_k, s.dk);
    row_v = row_bytes(s.type_v, s.dv);
    k.resize(size_t(s.cells) * s.kv_heads * row_k);
    v.resize(size_t(s.cells) * s.kv_heads * row_v);
    fill_rows(random, s.type_k, s.dk, 0.0f, s.size_k, k, row_k);
    fill_rows(random, s.type_v, s.dv, s.mean_v, s.size_v, v, row_v);
    q.resize(size_t(s.n_q) * heads * s.dk);
    std::normal_distribution<float> normal;
    for (float & x : q) {
        x = s.size_q * normal(random);
    }
    scale = 1.0f / std::sqrt(float(s.dk));
    // Cells in any order of positions, some of them unused, some of several sequences.
    pos.resize(s.cells);
    seqs.resize(s.cells);
    for (uint32_t c = 0; c < s.cells; ++c) {
        pos[c] = int32_t(c);
        seqs[c] = random() % 8 == 0 ? 0 : 1ull << (random() % s.seqs);
        if (s.seqs > 1 && random() % 4 == 0) {
            seqs[c] |= 1;
        }
    }
    std::shuffle(pos.begin(), pos.end(), random);
    for (uint32_t i = 0; i < s.n_q; ++i) {
        const bool blind = s.blind && i + 1 == s.n_q;
        q_pos.push_back(blind ? -1 : int32_t(s.cells / 2 + random() % (s.cells / 2 + 1)));
        q_seq.push_back(uint32_t(random() % s.seqs));
        q_except.push_back(s.excepted && i % 2 == 0 && !blind);
    }
    for (uint32_t h = 0; h < heads && s.sinks; ++h) {
        sinks.push_back(normal(random) * 3);
    }
    for (uint32_t c = 0; c < s.cells; ++c) {
        uint32_t seen = 0;
        for (uint32_t i = 0; i < s.n_q; ++i) {
            seen += visible(i, c);
        }
        const uint16_t half = c % 2 ? 0x7e00 : 0xfc00;
        for (uint32_t h = 0; h < s.kv_heads; ++h) {
            if (!seen && s.poison) {
                poison_row(s.type_k, &k[(size_t(c) * s.kv_heads + h) * row_k], row_k, half);
                poison_row(s.type_v, &v[(size_t(c) * s.kv_heads + h) * row_v], row_v, half);
            } else if (2 * seen <= s.n_q && s.foreign_infinity) {
                poison_row(s.type_v, &v[(size_t(c) * s.kv_heads + h) * row_v], row_v, 0x7c00);
            }
        }
    }
    std::vector<float> x(s.dv);
    for (size_t at = 0; at < v.size(); at += row_v) {
        kvp_dequantize_row(s.type_v, v.data() + at, x.data(), s.dv);
        for (float f : x) {
            v_max = std::isfinite(f) ? std::max(v_max, std::fabs(f)) : v_max;
        }
    }
    v_max = v_max > 0 ? v_max : 1;
}

bool attention_case::visible(uint32_t i, uint32_t c) const {
    const int64_t p = pos[c], at = q_pos[i];
    return (seqs[c] >> q_seq[i] & 1) && (p <= at || q_except[i]) && (shape.chunk == 0 || p >= at - at % shape.chunk)
        && (shape.window == INT32_MAX || p >= at - shape.window);
}

std::vector<double> attention_case::exact() const {
    const case_shape & s = shape;
    std::vector<double> out(size_t(s.n_q) * heads * s.dv);
    std::vector<float> kr(s.dk), vr(s.dv);
    for (uint32_t i = 0; i < s.n_q; ++i) {
        for (uint32_t h = 0; h < heads; ++h) {
            double * to = &out[(size_t(i) * heads + h) * s.dv];
            std::vector<std::pair<uint32_t, double>> scores;
            double m_max = -std::numeric_limits<double>::infinity();
            for (uint32_t c = 0; c < s.cells; ++c) {
                if (!visible(i, c)) {
                    continue;
                }
                kvp_dequantize_row(s.type_k, &k[(size_t(c) * s.kv_heads + h / s.group) * row_k], kr.data(), s.dk);
                double x = 0;
                for (uint32_t d = 0; d < s.dk; ++d) {
                    x += double(q[(size_t(i) * heads + h) * s.dk + d]) * kr[d];
                }
                x *= scale;
                x = s.softcap > 0 ? s.softcap * std::tanh(x / s.softcap) : x;
                if (s.max_bias > 0 && pos[c] <= q_pos[i]) {
                    x += double(kvp_gpu::alibi_slope(h, heads, s.max_bias)) * (pos[c] - q_pos[i]);
                }
                scores.emplace_back(c, x);
                m_max = std::max(m_max, x);
            }
            double sum = scores.empty() || sinks.empty() ? 0 : std::exp(sinks[h] - m_max);
            for (const auto & [c, x] : scores) {
                kvp_dequantize_row(s.type_v, &v[(size_t(c) * s.kv_heads + h / s.group) * row_v], vr.data(), s.dv);
                const double w = std::exp(x - m_max);
                sum += w;
                for (uint32_t d = 0; d < s.dv; ++d) {
                    to[d] += w * vr[d];
                }
            }
            for (uint32_t d = 0; d < s.dv; ++d) {
                to[d] = sum > 0 ? to[d] / sum : 0;
            }
        }
    }
    return out;
}

namespace {

using namespace kvp_gpu;

struct partial_memory {
    std::vector<float> m, l, acc;
    partial_memory(uint64_t rows, uint32_t dv)
        : m(rows, std::nanf("")), l(rows, std::nanf("")), acc(rows * dv + 4, std::nanf("")) {}
    partials view() {
        const uintptr_t at = (reinterpret_cast<uintptr_t>(acc.data()) + 15) / 16 * 16;
        return {m.data(), l.data(), reinterpret_cast<float *>(at)};
    }
};

attend_args arguments(const attention_case & c, const kernel_options & o, const std::vector<query_desc> & queries,
                      const std::vector<float> & slopes) {
    attend_args a = {};
    const uint32_t metadata = o.full && slopes.empty() ? no_metadata : 0;
    a.pages[0] = {c.k.data(), c.v.data(), metadata, c.shape.cells, o.full, 0};
    a.pos = c.pos.data();
    a.seqs = c.seqs.data();
    a.queries = queries.data();
    a.q = c.q.data();
    a.slopes = slopes.empty() ? nullptr : slopes.data();
    a.q_stride = int64_t(c.heads) * c.shape.dk;
    a.q_head_stride = c.shape.dk;
    a.n_q = c.shape.n_q;
    a.heads = c.heads;
    a.kv_heads = c.shape.kv_heads;
    a.group = c.shape.group;
    a.type_k = uint32_t(c.shape.type_k);
    a.type_v = uint32_t(c.shape.type_v);
    a.row_k = c.row_k;
    a.row_v = c.row_v;
    a.scale = c.scale;
    a.softcap = c.shape.softcap;
    return a;
}

std::vector<query_desc> describe(const attention_case & c) {
    std::vector<query_desc> out;
    for (uint32_t i = 0; i < c.shape.n_q; ++i) {
        const int64_t at = c.q_pos[i];
        int64_t lo = INT32_MIN;
        lo = c.shape.window != INT32_MAX ? at - c.shape.window : lo;
        lo = c.shape.chunk ? std::max(lo, at - at % c.shape.chunk) : lo;
        out.push_back({int32_t(lo), c.q_except[i] ? INT32_MAX : c.q_pos[i], c.q_pos[i], c.q_seq[i]});
    }
    return out;
}

} // namespace

std::vector<float> run_kernels(const attention_case & c, const kernel_options & o, std::string * failure) {
    const case_shape & s = c.shape;
    const uint32_t rows = s.n_q * c.heads;
    const std::vector<query_desc> queries = describe(c);
    std::vector<float> slopes;
    for (uint32_t h = 0; h < c.heads && s.max_bias > 0; ++h) {
        slopes.push_back(alibi_slope(h, c.heads, s.max_bias));
    }
    attend_args a = arguments(c, o, queries, slopes);
    attend_split split = split_attend(s.n_q, s.group, s.kv_heads, s.dv, s.cells);
    if (o.decode_rows >= 0) {
        const uint32_t tile = o.decode_rows ? uint32_t(o.decode_rows) : prefill_rows(s.dv);
        split.decode_rows = uint32_t(o.decode_rows);
        split.tiles = (s.n_q * s.group + tile - 1) / tile;
    }
    const uint32_t span = o.span ? o.span : s.cells, pieces = (s.cells + span - 1) / span;
    partial_memory state(rows, s.dv), parts(uint64_t(pieces) * rows, s.dv);
    std::vector<float> out(size_t(rows) * s.dv, std::nanf(""));
    const auto check = [&](const std::string & why) { *failure = failure->empty() ? why : *failure; };

    const emulator::grid per_row = {rows, 1, 1, merge_block};
    const merge_args empty = {{}, state.view(), 0, rows, s.dv};
    check(emulator::run(per_row, o.order, [&] { kvp_emulated::clear(empty); }));
    const auto attend = [&](uint32_t splits) {
        a.splits = splits;
        const bool known = kvp_emulated::with_attend_kernel(s.dk, s.dv, split, o.mma, [&](void (*kernel)(attend_args), uint32_t threads) {
            check(emulator::run({splits, s.kv_heads, split.tiles, threads}, o.order, [&] { kernel(a); }));
        });
        check(known ? "" : "no kernel");
    };
    if (o.resume) {
        a.resume = 1;
        a.out = state.view();
        a.span = span;
        for (uint32_t first = 0; first < s.cells; first += span) {
            page_desc & page = a.pages[0];
            page.k = c.k.data() + size_t(first) * s.kv_heads * c.row_k;
            page.v = c.v.data() + size_t(first) * s.kv_heads * c.row_v;
            page.metadata = page.metadata == no_metadata ? no_metadata : first;
            page.cells = std::min(span, s.cells - first);
            attend(1);
        }
    } else {
        a.out = parts.view();
        a.span = span;
        attend(pieces);
        const uint32_t step = o.one_by_one ? 1 : pieces;
        for (uint32_t i = 0; i < pieces; i += step) {
            const partials from = parts.view();
            const uint64_t at = uint64_t(i) * rows;
            const merge_args some = {{from.m + at, from.l + at, from.acc + at * s.dv}, state.view(), step, rows, s.dv, 1, 1, 0};
            check(emulator::run(per_row, o.order, [&] { kvp_emulated::merge(some); }));
        }
    }
    const finish_args finishing = {state.view(), s.sinks ? c.sinks.data() : nullptr, out.data(), rows, c.heads, s.dv};
    check(emulator::run(per_row, o.order, [&] { kvp_emulated::finish(finishing); }));
    return out;
}

double worst(const attention_case & c, const std::vector<float> & got, const std::vector<double> & want) {
    double largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double e = std::fabs(got[i] - want[i]) / c.v_max;
        largest = e <= largest ? largest : std::isnan(e) ? std::numeric_limits<double>::infinity() : e;
    }
    return largest;
}
