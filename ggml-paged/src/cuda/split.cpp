#include "cuda/split.h"

namespace kvp_gpu {

namespace {

// Enough blocks for a large device; more blocks would only give more partials to merge.
constexpr uint32_t wanted_blocks = 256;
constexpr uint32_t decode_rows_max = 16;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

} // namespace

bool has_kernels(uint32_t dk, uint32_t dv) {
#define KVP_CASE(K, V) if (dk == K && dv == V) { return true; }
    KVP_FOR_EACH_HEAD_DIM(KVP_CASE)
#undef KVP_CASE
    return false;
}

attend_split split_attend(uint32_t n_q, uint32_t group, uint32_t kv_heads, uint32_t dv, uint32_t page_cells) {
    attend_split s = {};
    const uint64_t rows = uint64_t(n_q) * group;
    const uint32_t tile = rows > decode_rows_max ? prefill_rows(dv) : rows > 8 ? 16 : rows > 4 ? 8 : rows > 1 ? 4 : 1;
    s.decode_rows = rows > decode_rows_max ? 0 : tile;
    s.tiles = uint32_t((rows + tile - 1) / tile);
    uint32_t span = decode_block;
    if (!s.decode_rows) {
        const uint32_t blocks = s.tiles * kv_heads;
        const uint32_t splits = blocks >= wanted_blocks ? 1 : ceil_div(wanted_blocks, blocks);
        span = ceil_div(ceil_div(page_cells, splits), decode_block) * decode_block;
    }
    s.span = span < page_cells ? span : page_cells;
    s.splits = ceil_div(page_cells, s.span);
    return s;
}

} // namespace kvp_gpu
