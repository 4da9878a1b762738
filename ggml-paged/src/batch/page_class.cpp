// The views of queries: the predicate per cell, and its summary per page.
#include <algorithm>

#include "batch/batch.h"

namespace kvp {

std::vector<query_view> views_of(const batch_data & data) {
    const kvp_batch_desc & d = data.desc;
    std::vector<query_view> views(d.n_q);
    for (uint32_t i = 0; i < d.n_q; i++) {
        const int64_t q  = data.q_pos[i];
        int64_t       lo = INT32_MIN;
        if (d.chunk > 0) {
            lo = q - q % d.chunk;
        }
        if (d.window != INT32_MAX) {
            lo = std::max(lo, q - d.window);
        }
        const bool except = !data.q_except.empty() && data.q_except[i];
        views[i].lo      = (int32_t) std::max<int64_t>(lo, INT32_MIN);
        views[i].hi      = except ? INT32_MAX : (int32_t) q;
        views[i].seq_bit = 1ull << data.q_seq[i];
    }
    return views;
}

kvp_class class_of(const batch_data & data, uint32_t page, uint32_t first, uint32_t n) {
    const kvp_page_stats & s = data.cells->pages[page];
    if (s.used == 0) {
        return KVP_EMPTY;
    }
    bool none = true;
    bool all  = s.used == data.cells->page_cells;
    for (uint32_t i = first; i < first + n && (none || all); i++) {
        const query_view & v = data.views[i];
        none = none && ((s.seqs_or & v.seq_bit) == 0 || s.pos_max < v.lo || s.pos_min > v.hi);
        all  = all && (s.seqs_and & v.seq_bit) != 0 && s.pos_min >= v.lo && s.pos_max <= v.hi;
    }
    return none ? KVP_EMPTY : all ? KVP_FULL : KVP_MIXED;
}

// The union of all queries' views: most cells out of reach are outside of it, and are found
// without a look at each query.
query_view reach_of(const batch_data & data) {
    query_view reach = {INT32_MAX, INT32_MIN, 0};
    for (const query_view & v : data.views) {
        reach.lo = std::min(reach.lo, v.lo);
        reach.hi = std::max(reach.hi, v.hi);
        reach.seq_bit |= v.seq_bit;
    }
    return reach;
}

namespace {

bool any_sees(const batch_data & data, int32_t pos, uint64_t seqs) {
    for (const query_view & v : data.views) {
        if ((seqs & v.seq_bit) != 0 && pos >= v.lo && pos <= v.hi) {
            return true;
        }
    }
    return false;
}

} // namespace

bool mark_page(batch_data & data, const query_view & reach, uint32_t page) {
    const batch_cells & cells = *data.cells;
    const size_t   begin = (size_t) page * cells.page_cells;
    const uint32_t n     = page_cells_described(cells, page);
    const bool     full  = class_of(data, page, 0, data.desc.n_q) == KVP_FULL;
    bool any = false;
    for (size_t c = begin; c < begin + n; c++) {
        const int32_t  pos  = cells.pos[c];
        const uint64_t seqs = cells.seqs[c];
        const bool near = (seqs & reach.seq_bit) != 0 && pos >= reach.lo && pos <= reach.hi;
        if (full || (near && any_sees(data, pos, seqs))) {
            data.live[c / 64] |= 1ull << c % 64;
            any = true;
        }
    }
    return any;
}

void find_live(batch_data & data) {
    const batch_cells & cells = *data.cells;
    const query_view    reach = reach_of(data);
    data.live.assign((cells.pos.size() + 63) / 64, 0);
    data.list.clear();
    for (uint32_t p = 0; p < cells.pages.size(); p++) {
        const kvp_page_stats & s = cells.pages[p];
        const bool near = s.used > 0 && (s.seqs_or & reach.seq_bit) != 0 && s.pos_max >= reach.lo && s.pos_min <= reach.hi;
        // A reserving batch has sizes only: queries may see any of its pages.
        if (data.desc.reserve || (near && mark_page(data, reach, p))) {
            data.list.push_back(cells.first_page + p);
        }
    }
}

} // namespace kvp

using namespace kvp;

const kvp_page_stats * kvp_batch_page(const kvp_batch * batch, uint32_t page) {
    const batch_data * data = batch->view;
    if (!data || page < data->cells->first_page || page - data->cells->first_page >= data->cells->pages.size()) {
        return nullptr;
    }
    return &data->cells->pages[page - data->cells->first_page];
}

kvp_class kvp_batch_class(const kvp_batch * batch, uint32_t page, uint32_t first, uint32_t n) {
    const batch_data * data = batch->view;
    if (!data || !kvp_batch_page(batch, page) || first >= data->desc.n_q) {
        return KVP_EMPTY;
    }
    return class_of(*data, page - data->cells->first_page, first, std::min(n, data->desc.n_q - first));
}

int kvp_visible(const kvp_batch * batch, uint32_t query, uint32_t cell) {
    const batch_data * data = batch->view;
    if (!data || query >= data->desc.n_q || cell < data->cells->first_cell ||
        cell - data->cells->first_cell >= data->cells->pos.size()) {
        return 0;
    }
    const uint32_t     c = cell - data->cells->first_cell;
    const query_view & v = data->views[query];
    return (data->cells->seqs[c] & v.seq_bit) != 0 && data->cells->pos[c] >= v.lo && data->cells->pos[c] <= v.hi;
}

uint32_t kvp_batch_list(const kvp_batch * batch, uint32_t * pages) {
    const batch_data * data = batch->view;
    if (!data) {
        return 0;
    }
    std::copy(data->list.begin(), data->list.end(), pages);
    return (uint32_t) data->list.size();
}
