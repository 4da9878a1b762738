#include "case.h"

#include <cstdio>

namespace {

struct dims { uint32_t dk, dv; };

const std::vector<uint32_t> TOKENS = {0, 1, 54, 97, 512, 2048, 16384, 65536, 131072};
const std::vector<uint32_t> BATCH  = {1, 7, 64, 512};
const std::vector<uint32_t> PAGE   = {16, 32, 64, 128, 256, 512, 1024, 2048};
const std::vector<dims>     DIMS   = {{64, 64}, {80, 80}, {96, 96}, {128, 128}, {256, 256}, {512, 512}, {576, 512}};
const std::vector<uint32_t> GQA    = {1, 2, 4, 5, 7, 8, 16};
const std::vector<int>      TYPES  = {KVP_F16, KVP_Q8_0, KVP_Q4_0};
const std::vector<float>    MEANS  = {0.0f, 0.4f, 1.0f};
const std::vector<uint32_t> THREADS = {1, 2, 3, 5};
const std::vector<std::string> MASKS   = {"causal", "window", "chunk", "sequences", "except", "nothing"};
const std::vector<std::string> BUDGETS = {"one", "tenth", "all"};

enum { P_TOKENS, P_BATCH, P_PAGE, P_DIMS, P_GQA, P_MASK, P_TYPE_K, P_TYPE_V, P_MEAN, P_BUDGET, P_SOFTCAP, P_ALIBI, P_SINKS, P_THREADS };

template <typename T>
std::vector<std::string> names(const std::vector<T> & values) {
    std::vector<std::string> out;
    for (const T & v : values) {
        out.push_back(std::to_string(v));
    }
    return out;
}

std::vector<parameter> parameters() {
    std::vector<std::string> heads, types, means;
    for (const dims & d : DIMS) {
        heads.push_back(std::to_string(d.dk) + (d.dk == d.dv ? "" : "/" + std::to_string(d.dv)));
    }
    for (int t : TYPES) {
        types.push_back(kvp_type_name(t));
    }
    for (float m : MEANS) {
        char text[16];
        std::snprintf(text, sizeof text, "%.1f", m);
        means.push_back(text);
    }
    const std::vector<std::string> off_on = {"off", "on"};
    return {{"tokens", names(TOKENS)}, {"batch", names(BATCH)}, {"page", names(PAGE)}, {"dims", heads}, {"gqa", names(GQA)},
            {"mask", MASKS}, {"k", types}, {"v", types}, {"mean", means}, {"budget", BUDGETS},
            {"softcap", off_on}, {"alibi", off_on}, {"sinks", off_on}, {"threads", names(THREADS)}};
}

// kv_heads_of: few K/V heads where one is large already, as more show nothing new there.
uint32_t kv_heads_of(uint32_t tokens, uint32_t dk, uint32_t gqa, uint64_t seed) {
    return dk > 256 || tokens > 2048 ? 1 : gqa == 5 ? 8 : 1 + seed % 3;
}

// flop_least is the cost of the cheapest completion of a row: values rise in cost, so that
// a parameter not chosen yet counts with its first value.
double flop_least(const design_row & row) {
    const auto     at     = [&](int p) { return row[p] < 0 ? 0 : row[p]; };
    const uint32_t tokens = TOKENS[at(P_TOKENS)], n_q = BATCH[at(P_BATCH)], gqa = GQA[at(P_GQA)];
    const dims     d      = DIMS[at(P_DIMS)];
    return 2.0 * n_q * (tokens + n_q) * gqa * kv_heads_of(tokens, d.dk, gqa, 0) * (d.dk + d.dv);
}

// row_allowed: heads of 80 elements are no multiple of a quantized block, so they are f16.
bool row_allowed(const design_row & row, double flop_max) {
    const bool f16_only = DIMS[row[P_DIMS] < 0 ? 0 : row[P_DIMS]].dk % 32 != 0;
    return flop_least(row) <= flop_max && (!f16_only || (row[P_TYPE_K] <= 0 && row[P_TYPE_V] <= 0));
}

test_case case_of(const design_row & row, uint64_t seed) {
    test_case c{};
    c.tokens     = TOKENS[row[P_TOKENS]];
    c.n_q        = BATCH[row[P_BATCH]];
    c.page_cells = PAGE[row[P_PAGE]];
    c.dk         = DIMS[row[P_DIMS]].dk;
    c.dv         = DIMS[row[P_DIMS]].dv;
    c.mask       = (mask_kind) row[P_MASK];
    c.type_k     = TYPES[row[P_TYPE_K]];
    c.type_v     = TYPES[row[P_TYPE_V]];
    c.v_mean     = MEANS[row[P_MEAN]];
    c.budget     = row[P_BUDGET];
    c.softcap    = row[P_SOFTCAP];
    c.alibi      = row[P_ALIBI];
    c.sinks      = row[P_SINKS];
    c.threads    = THREADS[row[P_THREADS]];
    c.seed       = seed;
    const uint32_t gqa = GQA[row[P_GQA]];
    c.kv_heads = kv_heads_of(c.tokens, c.dk, gqa, seed);
    c.heads    = gqa * c.kv_heads;
    return c;
}

} // namespace

std::string test_case::name() const {
    char text[256];
    std::snprintf(text, sizeof text, "tokens=%u batch=%u page=%u dims=%u/%u heads=%u/%u mask=%s k=%s v=%s mean=%.1f budget=%s%s%s%s threads=%u seed=%llu",
                  tokens, n_q, page_cells, dk, dv, heads, kv_heads, MASKS[mask].c_str(), kvp_type_name(type_k), kvp_type_name(type_v),
                  v_mean, BUDGETS[budget].c_str(), softcap ? " softcap" : "", alibi ? " alibi" : "", sinks ? " sinks" : "", threads,
                  (unsigned long long) seed);
    return text;
}

case_design design_cases(double flop_max, uint64_t seed) {
    case_design d;
    d.parameters = parameters();
    std::vector<int> values;
    for (const parameter & p : d.parameters) {
        values.push_back((int) p.values.size());
    }
    const row_filter allowed = [flop_max](const design_row & row) { return row_allowed(row, flop_max); };
    d.rows    = all_pairs(values, allowed, seed);
    d.missing = missing_pairs(values, allowed, d.rows);
    for (size_t i = 0; i < d.rows.size(); i++) {
        d.cases.push_back(case_of(d.rows[i], seed * 1000 + i));
    }
    return d;
}
