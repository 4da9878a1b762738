#include "attention_case.h"

#include <cmath>
#include <cstring>
#include <random>

attention_case::attention_case(const case_shape & s, uint64_t seed) : shape(s) {
    std::mt19937_64                       rng(seed);
    std::normal_distribution<float>       normal(0, 1);
    row_k      = s.dk * sizeof(float);
    row_v      = s.dv * sizeof(float);
    v_offset   = s.page_cells * row_k + 16;
    if (s.v_align > 0) {
        v_offset = (s.page_cells * row_k + s.v_align - 1) / s.v_align * s.v_align;
    }
    page_bytes = v_offset + s.page_cells * row_v + 8;
    const uint32_t cells = s.pages * s.page_cells;
    for (uint32_t i = 0; i < s.queries; i++) {
        q_pos.push_back((int32_t) (cells - 1 - rng() % (cells > 4 ? cells / 4 : 1)));
    }
    for (uint32_t i = 0; i < s.queries * s.heads * s.dk; i++) {
        q.push_back(normal(rng));
    }
    for (uint32_t h = 0; s.sinks && h < s.heads; h++) {
        sinks.push_back(normal(rng));
    }
    for (uint32_t c = 0; c < cells; c++) {
        used.push_back(c % s.page_cells < cells_of(c / s.page_cells) && rng() % 8 != 0);
    }
    contents.assign(s.pages, std::vector<uint8_t>(page_bytes, 0xff));  // 0xffffffff is a NaN
    for (uint32_t c = 0; c < cells; c++) {
        bool seen = false;
        for (uint32_t i = 0; i < s.queries; i++) {
            seen = seen || visible(i, c);
        }
        if (!seen) {
            continue;
        }
        uint8_t * page = contents[c / s.page_cells].data();
        for (uint32_t d = 0; d < s.dk + s.dv; d++) {
            const float x = normal(rng) + (d < s.dk ? 0.0f : 0.5f);
            uint8_t * to = d < s.dk ? page + (c % s.page_cells) * row_k + d * sizeof x
                                    : page + v_offset + (c % s.page_cells) * row_v + (d - s.dk) * sizeof x;
            memcpy(to, &x, sizeof x);
        }
    }
    solve();
}

uint32_t attention_case::cells_of(uint32_t page) const {
    return page + 1 == shape.pages ? shape.last_cells : shape.page_cells;
}

kvp_page_ref attention_case::ref(uint32_t page) const {
    return kvp_page_ref{page, cells_of(page), KVP_MIXED};
}

kvp::plan_page attention_case::plan_page(uint32_t page, kvp::residency where) const {
    return kvp::plan_page{ref(page), where, cells_of(page) * (uint64_t) (row_k + row_v)};
}

kvp::hybrid_op attention_case::op(uint32_t slots) const {
    return kvp::hybrid_op{shape.page_cells, row_k, row_v, v_offset, page_bytes, rows(), shape.dv, slots};
}

bool attention_case::visible(uint32_t query, uint32_t cell) const {
    return used[cell] && (int32_t) cell <= q_pos[query];
}

void attention_case::attend(const kvp_page_ref & ref, const uint8_t * k, const uint8_t * v, const kvp_partial & out) const {
    kvp::partial_clear(out);
    for (uint32_t r = 0; r < rows(); r++) {
        std::vector<float> s(ref.cells, -INFINITY);
        for (uint32_t c = 0; c < ref.cells; c++) {
            if (!visible(r / shape.heads, ref.page * shape.page_cells + c)) {
                continue;
            }
            float dot = 0;
            for (uint32_t d = 0; d < shape.dk; d++) {
                float x;
                memcpy(&x, k + c * row_k + d * sizeof x, sizeof x);
                dot += x * q[r * shape.dk + d];
            }
            s[c]     = dot;
            out.m[r] = std::isnan(dot) || dot > out.m[r] ? dot : out.m[r];
        }
        for (uint32_t c = 0; c < ref.cells; c++) {
            if (s[c] == -INFINITY) {
                continue;
            }
            const float p = std::exp(s[c] - out.m[r]);
            out.l[r] += p;
            for (uint32_t d = 0; d < shape.dv; d++) {
                float x;
                memcpy(&x, v + c * row_v + d * sizeof x, sizeof x);
                out.acc[r * shape.dv + d] += p * x;
            }
        }
    }
}

void attention_case::solve() {
    for (uint32_t r = 0; r < rows(); r++) {
        std::vector<double> score, acc(shape.dv, 0.0);
        double m = -INFINITY;
        for (uint32_t c = 0; c < used.size(); c++) {
            double dot = 0;
            for (uint32_t d = 0; d < shape.dk; d++) {
                float x;
                memcpy(&x, contents[c / shape.page_cells].data() + (c % shape.page_cells) * row_k + d * sizeof x, sizeof x);
                dot += (double) x * q[r * shape.dk + d];
            }
            score.push_back(visible(r / shape.heads, c) ? dot : -INFINITY);
            m = std::fmax(m, score.back());
        }
        double l = sinks.empty() || m == -INFINITY ? 0 : std::exp((double) sinks[r % shape.heads] - m);
        for (uint32_t c = 0; c < used.size() && m > -INFINITY; c++) {
            if (score[c] == -INFINITY) {
                continue;
            }
            l += std::exp(score[c] - m);
            for (uint32_t d = 0; d < shape.dv; d++) {
                float x;
                memcpy(&x, contents[c / shape.page_cells].data() + v_offset + (c % shape.page_cells) * row_v + d * sizeof x, sizeof x);
                acc[d] += std::exp(score[c] - m) * x;
            }
        }
        for (double a : acc) {
            answer.push_back(m == -INFINITY ? 0 : a / l);
        }
    }
}

double attention_case::error(const std::vector<float> & out) const {
    double worst = out.size() == answer.size() ? 0 : INFINITY;
    for (size_t i = 0; i < out.size() && i < answer.size(); i++) {
        const double e = std::fabs(out[i] - answer[i]);
        worst = e <= worst ? worst : e;  // NaN counts
    }
    return worst;
}
