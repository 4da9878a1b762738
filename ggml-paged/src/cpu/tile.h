// Live cells of a tile, in the kernels' form.
#pragma once

#include "batch/batch.h"
#include "cpu/kernels.h"

namespace kvp {

struct tile_cells {
    uint32_t n;                 // live cells
    uint8_t  live[TILE_CELLS];  // indexes of live cells in the tile, padded with the last one
    int32_t  pos[TILE_CELLS];   // of the live cells
    uint64_t seqs[TILE_CELLS];
    int32_t  pos_min, pos_max;
    uint64_t seqs_and, seqs_or;
};

// collect_tile gathers the cells of a page (relative to the range) from first on, up to
// TILE_CELLS of them and not beyond end. False if no cell is live.
bool collect_tile(const batch_data & data, uint32_t page, uint32_t first, uint32_t end, tile_cells & tile);

// source_of describes the rows of K/V head kv_head in a tile that begins at cell first of a
// page, of which page_cells cells may be read ahead.
tile_source source_of(const kvp_layer_desc & layer, uint32_t page_cells, const kvp_page & page, uint32_t first,
                      const tile_cells & cells, uint32_t kv_head);

// sees_all is true only if the query sees all live cells.
inline bool sees_all(const tile_cells & t, const query_view & v) {
    return (t.seqs_and & v.seq_bit) != 0 && t.pos_min >= v.lo && t.pos_max <= v.hi;
}

} // namespace kvp
