#include "select/bounds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pager/pager.h"
#include "types/rows.h"

namespace kvp {

namespace {

// Bounds that are kept at a page: of several sequences, and of blocks as they were.
constexpr size_t KEPT_MAX = 64;

constexpr uint64_t VERSION_PRIME = 0x100000001b3;  // of FNV-1a

// widen extends the bounds of a head by a row. NaN extends nothing.
void widen(float * greatest, float * least, const float * row, uint32_t dk) {
    for (uint32_t d = 0; d < dk; d++) {
        greatest[d] = row[d] > greatest[d] ? row[d] : greatest[d];
        least[d]    = row[d] < least[d] ? row[d] : least[d];
    }
}

// add_page extends limits, in the order of key_bounds.rows, by a block's cells in a page.
void add_page(const kvp_layer_desc & layer, uint32_t page_cells, const position_block & block, uint32_t page, const uint8_t * k,
              std::vector<float> & limits) {
    const size_t bytes = kvp_row_bytes(layer.type_k, layer.dk);
    std::vector<float> row(layer.dk);
    for (uint32_t cell : block.cells) {
        for (uint32_t h = 0; h < layer.kv_heads && cell / page_cells == page; h++) {
            float * greatest = limits.data() + (size_t) h * 2 * layer.dk;
            kvp_dequantize_row(layer.type_k, k + ((size_t) (cell % page_cells) * layer.kv_heads + h) * bytes, row.data(), layer.dk);
            widen(greatest, greatest + layer.dk, row.data(), layer.dk);
        }
    }
}

std::vector<float> no_limits(const kvp_layer_desc & layer) {
    std::vector<float> limits((size_t) layer.kv_heads * 2 * layer.dk);
    for (size_t i = 0; i < limits.size(); i++) {
        limits[i] = i / layer.dk % 2 == 0 ? -INFINITY : INFINITY;
    }
    return limits;
}

// version_of is the version of a block's pages together; of(page) is that of one.
template <typename F> uint64_t version_of(const position_block & block, F of) {
    uint64_t version = 0;
    for (uint32_t page : block.pages) {
        version = (version ^ of(page)) * VERSION_PRIME;
    }
    return version;
}

// place returns the bounds to overwrite: those of the same cells, or the oldest.
key_bounds & place(std::vector<key_bounds> & bounds, uint64_t mark) {
    auto at = std::find_if(bounds.begin(), bounds.end(), [&](const key_bounds & b) { return b.mark == mark; });
    if (at != bounds.end() || bounds.size() < KEPT_MAX) {
        return at != bounds.end() ? *at : bounds.emplace_back();
    }
    std::rotate(bounds.begin(), bounds.begin() + 1, bounds.end());
    return bounds.back();
}

} // namespace

bounds_table & table_of(kvp_pager * pager, uint32_t layer) {
    std::shared_ptr<bounds_table> & table = registry_of(pager).bounds;
    if (!table) {
        table = std::make_shared<bounds_table>();
        table->layers.resize(kvp_pager_layers(pager));
    }
    auto & pages = table->layers[layer];
    if (pages.empty()) {
        const uint32_t page_cells = kvp_page_cells(pager);
        pages.resize((kvp_layer_get(pager, layer)->n_cells + page_cells - 1) / page_cells);
    }
    return *table;
}

const uint16_t * find_bounds(const kvp_op & op, const bounds_table & table, const position_block & block) {
    for (const key_bounds & b : table.layers[op.params.layer][block.pages[0]]) {
        if (b.mark == block.mark) {
            return b.rows.data();
        }
    }
    return nullptr;
}

std::vector<const position_block *> lacking(const kvp_op & op, const batch_cells & cells, const bounds_table & table,
                                            const std::vector<const position_block *> & blocks) {
    std::vector<uint32_t> pages(cells.pages.size());
    std::iota(pages.begin(), pages.end(), cells.first_page);
    std::vector<uint64_t> versions(pages.size());
    kvp_page_versions(op.batch->pager, op.params.layer, pages.data(), (uint32_t) pages.size(), versions.data());
    std::vector<const position_block *> out;
    for (const position_block * block : blocks) {
        const uint64_t version = version_of(*block, [&](uint32_t page) { return versions[page - cells.first_page]; });
        const auto & bounds = table.layers[op.params.layer][block->pages[0]];
        if (std::none_of(bounds.begin(), bounds.end(), [&](const key_bounds & b) { return b.mark == block->mark && b.version == version; })) {
            out.push_back(block);
        }
    }
    return out;
}

int compute_bounds(const kvp_op & op, const position_block & block, bounds_table & table) {
    kvp_pager * pager = op.batch->pager;
    const uint64_t version = version_of(block, [&](uint32_t page) { return kvp_page_version(pager, op.params.layer, page); });
    std::vector<float> limits = no_limits(op.layer);
    for (uint32_t page : block.pages) {
        kvp_page data;
        const int error = kvp_pin(pager, op.params.layer, page, &data);
        if (error != 0) {
            return error;
        }
        add_page(op.layer, kvp_page_cells(pager), block, page, data.k, limits);
        kvp_unpin(pager, op.params.layer, page, 0);
    }
    std::lock_guard<std::mutex> lock(table.storing);
    key_bounds & b = place(table.layers[op.params.layer][block.pages[0]], block.mark);
    table.bytes += (limits.size() - b.rows.size()) * sizeof(uint16_t);
    b.rows.resize(limits.size());
    f16_from_floats(limits.data(), b.rows.data(), (uint32_t) limits.size());
    b.version = version;
    b.mark    = block.mark;
    return 0;
}

} // namespace kvp

using namespace kvp;

size_t kvp_bounds_bytes(const kvp_pager * pager, uint32_t layer) {
    const kvp_layer_desc * desc = kvp_layer_get(pager, layer);
    return (size_t) desc->kv_heads * 2 * desc->dk * sizeof(uint16_t);
}

void kvp_bounds_drop(kvp_pager * pager, uint32_t group, uint32_t page) {
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(pager));
    bounds_table * table = registry_of(pager).bounds.get();
    for (uint32_t layer = 0; table && layer < table->layers.size(); layer++) {
        auto & pages = table->layers[layer];
        if (kvp_layer_get(pager, layer)->group == group && page < pages.size()) {
            table->bytes -= pages[page].size() * kvp_bounds_bytes(pager, layer);
            std::vector<key_bounds>().swap(pages[page]);
        }
    }
}
