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

} // namespace kvp
