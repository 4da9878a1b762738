// Shapes that stock attention can compute too. Budgets and pages are small, so that most
// pages are read from the spill file.
#include "checks.h"

namespace {

struct variation {
    uint32_t  tokens, n_q, page_cells, dim, heads, kv_heads;
    mask_kind mask;
    int       type;
    bool      softcap, alibi, sinks;
};

constexpr variation variations[] = {
    {300,   1, 64,  128,  8, 2, MASK_CAUSAL,    KVP_F16,  false, false, false},
    {1500,  1, 256, 128,  8, 2, MASK_CAUSAL,    KVP_Q8_0, false, false, false},
    {1000, 64, 128, 128,  8, 2, MASK_CAUSAL,    KVP_F16,  false, false, false},
    {700,  33, 64,   64,  4, 4, MASK_WINDOW,    KVP_Q8_0, false, false, false},
    {600,   5, 32,   64,  8, 2, MASK_SEQUENCES, KVP_F16,  false, false, true },
    {500,  17, 64,  128,  8, 2, MASK_EXCEPT,    KVP_F16,  false, false, false},
    {900,   7, 128,  64,  8, 8, MASK_CHUNK,     KVP_Q4_0, false, false, true },
    {400,  12, 64,  128,  4, 4, MASK_CAUSAL,    KVP_F16,  true,  false, false},
    {400,   1, 64,   64,  4, 4, MASK_CAUSAL,    KVP_F16,  false, true,  false},
    {2000,  2, 512, 128, 40, 8, MASK_CAUSAL,    KVP_F16,  false, false, false},
};

} // namespace

const std::vector<test_case> & cases_beside_stock() {
    static const std::vector<test_case> cases = [] {
        std::vector<test_case> out;
        for (const variation & v : variations) {
            out.push_back({v.tokens, v.n_q, v.page_cells, v.dim, v.dim, v.heads, v.kv_heads, v.mask, v.type, v.type,
                           0.0f, 1, v.softcap, v.alibi, v.sinks, 2, 100 + out.size()});
        }
        return out;
    }();
    return cases;
}

test_case a_case(uint32_t tokens, uint32_t n_q) {
    return {tokens, n_q, 64, 128, 128, 8, 2, MASK_CAUSAL, KVP_F16, KVP_F16, 0.0f, 2, false, false, false, 2, 6};
}
