// Parts of a batch: some of its queries, or one with a choice of the cells that it sees.
#include <algorithm>
#include <numeric>

#include "batch/batch.h"

namespace kvp {

namespace {

constexpr uint64_t MARK_PRIME = 0x100000001b3;  // of FNV-1a

void add_cell(position_block & b, uint32_t cell, int32_t pos, uint32_t page_cells) {
    b.pos_min = std::min(b.pos_min, pos);
    b.pos_max = std::max(b.pos_max, pos);
    b.mark    = (b.mark ^ (cell + 1)) * MARK_PRIME;
    b.cells.push_back(cell);
    if (std::find(b.pages.begin(), b.pages.end(), cell / page_cells) == b.pages.end()) {
        b.pages.push_back(cell / page_cells);
    }
}

// blocks_of are the blocks of a sequence, by position.
std::vector<position_block> blocks_of(const batch_cells & cells, uint32_t seq) {
    std::vector<uint32_t> of;
    for (uint32_t c = 0; c < cells.seqs.size(); c++) {
        if ((cells.seqs[c] >> seq & 1) != 0) {
            of.push_back(c);
        }
    }
    const auto before = [&](uint32_t a, uint32_t b) { return cells.pos[a] != cells.pos[b] ? cells.pos[a] < cells.pos[b] : a < b; };
    if (!std::is_sorted(of.begin(), of.end(), before)) {
        std::sort(of.begin(), of.end(), before);
    }
    std::vector<position_block> out;
    int64_t last = 0;
    for (uint32_t c : of) {
        const int64_t number = std::max(cells.pos[c], 0) / (int64_t) cells.page_cells;
        if (out.empty() || number != last) {
            out.push_back({INT32_MAX, INT32_MIN, 0, {}, {}});
            last = number;
        }
        add_cell(out.back(), cells.first_cell + c, cells.pos[c], cells.page_cells);
    }
    return out;
}

bool sees(const batch_data & data, const query_view & view, uint32_t cell) {
    const int32_t pos = data.cells->pos[cell - data.cells->first_cell];
    return pos >= view.lo && pos <= view.hi;
}

void list_filled(const batch_data & data, query_lists & lists) {
    const batch_cells & cells = *data.cells;
    std::vector<bool> put(cells.pos.size(), false);
    for (uint32_t cell : data.q_cell) {
        if (cell >= cells.first_cell && cell - cells.first_cell < put.size()) {
            put[cell - cells.first_cell] = true;
        }
    }
    std::vector<uint32_t> seqs = data.q_seq;
    std::sort(seqs.begin(), seqs.end());
    seqs.erase(std::unique(seqs.begin(), seqs.end()), seqs.end());
    for (uint32_t seq : seqs) {
        for (position_block & b : blocks_of(cells, seq)) {
            const bool ours = std::any_of(b.cells.begin(), b.cells.end(), [&](uint32_t c) { return put[c - cells.first_cell]; });
            if (ours && b.cells.size() == cells.page_cells) {
                lists.filled.push_back(std::move(b));
            }
        }
    }
}

void list_seen(const batch_data & data, query_lists & lists) {
    lists.seen.resize(data.desc.n_q);
    for (uint32_t i = 0; i < data.q_select.size(); i++) {
        if (!data.q_select[i]) {
            continue;
        }
        for (position_block & b : blocks_of(*data.cells, data.q_seq[i])) {
            if (std::any_of(b.cells.begin(), b.cells.end(), [&](uint32_t c) { return sees(data, data.views[i], c); })) {
                lists.seen[i].push_back(std::move(b));
            }
        }
    }
}

std::shared_ptr<batch_data> queries_of(const batch_data & data, uint32_t first, uint32_t n) {
    const auto range = [&](auto & out, const auto & all) {
        if (!all.empty()) {
            out.assign(all.begin() + first, all.begin() + first + n);
        }
    };
    auto part = std::make_shared<batch_data>();
    part->desc     = data.desc;
    part->desc.n_q = n;
    part->cells    = data.cells;
    range(part->q_pos, data.q_pos);
    range(part->q_seq, data.q_seq);
    range(part->q_except, data.q_except);
    range(part->views, data.views);
    point_to_own(*part);
    part->live.assign(data.live.size(), 0);
    return part;
}

} // namespace

const query_lists & lists_of(const batch_data & data) {
    std::call_once(data.lists->made, [&] {
        list_filled(data, *data.lists);
        list_seen(data, *data.lists);
    });
    return *data.lists;
}

std::shared_ptr<const batch_data> part_of(const batch_data & data, uint32_t first, uint32_t n) {
    const std::shared_ptr<batch_data> part = queries_of(data, first, n);
    const query_view reach = reach_of(*part);
    for (uint32_t page : data.list) {
        if (mark_page(*part, reach, page - data.cells->first_page)) {
            part->list.push_back(page);
        }
    }
    return part;
}

std::shared_ptr<const batch_data> part_of_blocks(const batch_data & data, uint32_t query, const std::vector<const position_block *> & blocks) {
    const std::shared_ptr<batch_data> part = queries_of(data, query, 1);
    for (const position_block * b : blocks) {
        for (uint32_t cell : b->cells) {
            const uint32_t c = cell - data.cells->first_cell;
            if (sees(data, data.views[query], cell)) {
                part->live[c / 64] |= 1ull << c % 64;
                part->list.push_back(cell / data.cells->page_cells);
            }
        }
    }
    std::sort(part->list.begin(), part->list.end());
    part->list.erase(std::unique(part->list.begin(), part->list.end()), part->list.end());
    return part;
}

} // namespace kvp
