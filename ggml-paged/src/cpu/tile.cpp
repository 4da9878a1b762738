#include "cpu/tile.h"

#include <algorithm>

namespace kvp {

namespace {

// live_bits are the bits of up to TILE_CELLS cells from cell on; pages of 16 and 32 cells
// begin within a word.
uint64_t live_bits(const batch_data & data, size_t cell, uint32_t n) {
    const uint64_t word = data.live[cell / 64] >> cell % 64;
    return n < 64 ? word & ((1ull << n) - 1) : word;
}

} // namespace

bool collect_tile(const batch_data & data, uint32_t page, uint32_t first, uint32_t end, tile_cells & t) {
    const batch_cells & cells = *data.cells;
    end = std::min(end, page_cells_described(cells, page));
    if (first >= end) {
        return false;
    }
    const size_t begin = (size_t) page * cells.page_cells + first;
    uint64_t bits = live_bits(data, begin, std::min(end - first, TILE_CELLS));
    t.n = 0;
    t.pos_min  = INT32_MAX;
    t.pos_max  = INT32_MIN;
    t.seqs_and = ~0ull;
    t.seqs_or  = 0;
    for (; bits != 0; bits &= bits - 1) {
        const uint32_t c = (uint32_t) __builtin_ctzll(bits);
        t.live[t.n] = (uint8_t) c;
        t.pos[t.n]  = cells.pos[begin + c];
        t.seqs[t.n] = cells.seqs[begin + c];
        t.pos_min   = std::min(t.pos_min, t.pos[t.n]);
        t.pos_max   = std::max(t.pos_max, t.pos[t.n]);
        t.seqs_and &= t.seqs[t.n];
        t.seqs_or  |= t.seqs[t.n];
        t.n++;
    }
    if (t.n == 0) {
        return false;
    }
    std::fill(t.live + t.n, t.live + TILE_CELLS, t.live[t.n - 1]);
    return true;
}

tile_source source_of(const kvp_layer_desc & layer, uint32_t page_cells, const kvp_page & page, uint32_t first, const tile_cells & cells, uint32_t kv_head) {
    const size_t head_k = kvp_row_bytes(layer.type_k, layer.dk);
    const size_t head_v = kvp_row_bytes(layer.type_v, layer.dv);
    tile_source s;
    s.type_k   = layer.type_k;
    s.type_v   = layer.type_v;
    s.dk       = layer.dk;
    s.dv       = layer.dv;
    s.k_stride = head_k * layer.kv_heads;
    s.v_stride = head_v * layer.kv_heads;
    s.k        = page.k + first * s.k_stride + kv_head * head_k;
    s.v        = page.v + first * s.v_stride + kv_head * head_v;
    // After the last head comes the first one of the next tile, in the same page.
    const bool last = kv_head + 1 == layer.kv_heads;
    const bool none = last && first + TILE_CELLS >= page_cells;
    const ptrdiff_t heads_back = (ptrdiff_t) layer.kv_heads - 1;
    s.k_ahead  = none ? 0 : last ? (ptrdiff_t) (TILE_CELLS * s.k_stride) - heads_back * (ptrdiff_t) head_k : (ptrdiff_t) head_k;
    s.v_ahead  = none ? 0 : last ? (ptrdiff_t) (TILE_CELLS * s.v_stride) - heads_back * (ptrdiff_t) head_v : (ptrdiff_t) head_v;
    s.live     = cells.live;
    s.n        = cells.n;
    return s;
}

} // namespace kvp
