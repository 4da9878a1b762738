// Making batches: checks, own copies, statistics per page, and the ring of each group.
#include "batch/batch.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "pager/pager.h"

namespace kvp {

batch_registry & registry_of(kvp_pager * pager) {
    std::shared_ptr<void> & slot = kvp_attachment(pager);
    if (!slot) {
        slot = std::make_shared<batch_registry>();
    }
    return *static_cast<batch_registry *>(slot.get());
}

uint32_t page_cells_described(const batch_cells & cells, uint32_t page) {
    const size_t begin = (size_t) page * cells.page_cells;
    return (uint32_t) std::min<size_t>(cells.page_cells, cells.pos.size() - begin);
}

void point_to_own(batch_data & data) {
    kvp_batch_desc & d = data.desc;
    d.pos      = data.cells->pos.data();
    d.seqs     = data.cells->seqs.data();
    d.q_pos    = data.q_pos.data();
    d.q_seq    = data.q_seq.data();
    d.q_except = data.q_except.empty() ? nullptr : data.q_except.data();
    d.q_cell   = data.q_cell.empty() ? nullptr : data.q_cell.data();
    d.q_select = data.q_select.empty() ? nullptr : data.q_select.data();
}

} // namespace kvp

using namespace kvp;

namespace {

// group_cells is the capacity of a group, 0 for a group without layers.
uint32_t group_cells(const kvp_pager * pager, uint32_t group) {
    for (uint32_t i = 0; i < kvp_pager_layers(pager); i++) {
        const kvp_layer_desc * layer = kvp_layer_get(pager, i);
        if (layer->group == group) {
            return layer->n_cells;
        }
    }
    return 0;
}

int check_range(const kvp_pager * pager, const kvp_batch_desc & d) {
    const uint32_t capacity = d.group < GROUPS_MAX ? group_cells(pager, d.group) : 0;
    if (capacity == 0) {
        return kvp_set_error(-EINVAL, "A batch for group %u cannot begin: no layer of the pager is in that group.", d.group);
    }
    if (d.first_cell % kvp_page_cells(pager) != 0) {
        return kvp_set_error(-EINVAL, "A batch of group %u cannot begin at cell %u: that is not the first cell of a page of %u cells.",
                      d.group, d.first_cell, kvp_page_cells(pager));
    }
    if ((uint64_t) d.first_cell + d.n_cells > capacity) {
        return kvp_set_error(-EINVAL, "A batch of group %u cannot describe cells %u to %llu: the group has %u.",
                      d.group, d.first_cell, (unsigned long long) d.first_cell + d.n_cells, capacity);
    }
    for (uint32_t i = 0; d.q_cell && !d.reserve && i < d.n_q; i++) {
        if (d.q_cell[i] >= capacity) {
            return kvp_set_error(-EINVAL, "A batch of group %u cannot put query %u into cell %u: the group has %u.",
                          d.group, i, d.q_cell[i], capacity);
        }
    }
    return 0;
}

int check_queries(const kvp_batch_desc & d) {
    if (d.n_q == 0) {
        return kvp_set_error(-EINVAL, "A batch of group %u has no queries.", d.group);
    }
    if (d.window < 0 || d.chunk < 0) {
        return kvp_set_error(-EINVAL, "A batch of group %u has a window of %d and a chunk of %d: neither can be negative.",
                      d.group, d.window, d.chunk);
    }
    if (d.reserve) {
        return 0;
    }
    if ((d.n_cells > 0 && (!d.pos || !d.seqs)) || !d.q_pos || !d.q_seq) {
        return kvp_set_error(-EINVAL, "A batch of group %u lacks positions or sequences; only a reserving one may.", d.group);
    }
    for (uint32_t i = 0; i < d.n_q; i++) {
        if (d.q_seq[i] >= KVP_MAX_SEQUENCES) {
            return kvp_set_error(-EINVAL, "A batch of group %u has query %u in sequence %u: there are %u at most; use fewer parallel requests.",
                          d.group, i, d.q_seq[i], KVP_MAX_SEQUENCES);
        }
    }
    return 0;
}

kvp_page_stats page_stats_of(const batch_cells & cells, uint32_t page) {
    const size_t   begin = (size_t) page * cells.page_cells;
    const uint32_t n     = page_cells_described(cells, page);
    kvp_page_stats s = {0, INT32_MAX, INT32_MIN, ~0ull, 0};
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t seqs = cells.seqs[begin + i];
        const int32_t  pos  = cells.pos[begin + i];
        const bool     used = seqs != 0;
        s.used    += used;
        s.pos_min  = used ? std::min(s.pos_min, pos) : s.pos_min;
        s.pos_max  = used ? std::max(s.pos_max, pos) : s.pos_max;
        s.seqs_and = used ? s.seqs_and & seqs : s.seqs_and;
        s.seqs_or |= seqs;
    }
    if (s.used == 0) {
        return {0, 0, 0, 0, 0};
    }
    return s;
}

std::shared_ptr<const batch_cells> copy_cells(const kvp_pager * pager, const kvp_batch_desc & d) {
    auto cells = std::make_shared<batch_cells>();
    cells->page_cells = kvp_page_cells(pager);
    cells->first_cell = d.first_cell;
    cells->first_page = d.first_cell / cells->page_cells;
    if (d.reserve) {
        cells->pos.assign(d.n_cells, 0);
        cells->seqs.assign(d.n_cells, 0);
    } else if (d.n_cells > 0) {
        cells->pos.assign(d.pos, d.pos + d.n_cells);
        cells->seqs.assign(d.seqs, d.seqs + d.n_cells);
    }
    const uint32_t n_pages = (uint32_t) (((uint64_t) d.n_cells + cells->page_cells - 1) / cells->page_cells);
    cells->pages.resize(n_pages);
    for (uint32_t p = 0; p < n_pages; p++) {
        cells->pages[p] = page_stats_of(*cells, p);
    }
    return cells;
}

// put_order_of sorts the queries by cell, so that rows are written page by page. Of two
// queries with the same cell the later one counts.
std::vector<uint32_t> put_order_of(const std::vector<uint32_t> & q_cell) {
    std::vector<uint32_t> order(q_cell.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return q_cell[a] != q_cell[b] ? q_cell[a] < q_cell[b] : a < b; });
    std::vector<uint32_t> last;
    for (size_t i = 0; i < order.size(); i++) {
        if (i + 1 == order.size() || q_cell[order[i]] != q_cell[order[i + 1]]) {
            last.push_back(order[i]);
        }
    }
    return last;
}

void settle(batch_data & data) {
    point_to_own(data);
    data.views     = views_of(data);
    data.put_order = put_order_of(data.q_cell);
    data.lists     = std::make_shared<query_lists>();
    find_live(data);
}

std::shared_ptr<const batch_data> copy_data(const kvp_pager * pager, const kvp_batch_desc & d) {
    auto data = std::make_shared<batch_data>();
    data->desc  = d;
    data->cells = copy_cells(pager, d);
    if (d.reserve) {
        data->q_pos.assign(d.n_q, 0);
        data->q_seq.assign(d.n_q, 0);
        data->q_cell.assign(d.n_q, 0);
    } else {
        data->q_pos.assign(d.q_pos, d.q_pos + d.n_q);
        data->q_seq.assign(d.q_seq, d.q_seq + d.n_q);
        if (d.q_cell) {
            data->q_cell.assign(d.q_cell, d.q_cell + d.n_q);
        }
        if (d.q_except) {
            data->q_except.assign(d.q_except, d.q_except + d.n_q);
        }
        if (d.q_select) {
            data->q_select.assign(d.q_select, d.q_select + d.n_q);
        }
    }
    settle(*data);
    return data;
}

std::unique_ptr<kvp_batch> make_batch(kvp_pager * pager, std::shared_ptr<const batch_data> data) {
    auto batch = std::make_unique<kvp_batch>();
    batch->pager = pager;
    batch->view  = data.get();
    batch->data  = std::move(data);
    return batch;
}

// retire releases the data of a batch. A running op keeps its own reference.
void retire(kvp_batch & batch) {
    batch.view = nullptr;
    batch.data.reset();
    for (auto & derived : batch.derived) {
        retire(*derived);
    }
}

} // namespace

int kvp_batch_begin(kvp_pager * pager, const kvp_batch_desc * desc, kvp_batch ** out) {
    if (!pager || !desc || !out) {
        return kvp_set_error(-EINVAL, "A batch needs a pager, a description and a place for the result.");
    }
    int err = check_queries(*desc);
    if (err == 0) {
        err = check_range(pager, *desc);
    }
    if (err != 0) {
        return err;
    }
    auto batch = make_batch(pager, copy_data(pager, *desc));
    *out = batch.get();

    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(pager));
    batch_registry & registry = registry_of(pager);
    auto & live   = registry.live[desc->group];
    auto & shells = registry.shells[desc->group];
    live.push_back(std::move(batch));
    while (live.size() > KVP_BATCHES) {
        retire(*live.front());
        shells.push_back(std::move(live.front()));
        live.pop_front();
    }
    while (shells.size() > BATCH_SHELLS_MAX) {
        shells.pop_front();
    }
    return 0;
}

int kvp_batch_except(kvp_batch * batch, const uint8_t * q_except, kvp_batch ** out) {
    if (!batch || !q_except || !out) {
        return kvp_set_error(-EINVAL, "A derived batch needs a batch, its exceptions and a place for the result.");
    }
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(batch->pager));
    if (!batch->data) {
        return kvp_set_error(-ESTALE, "Exceptions cannot be set for a batch that %u later ones of its group have replaced.", KVP_BATCHES);
    }
    // Layers with the same exceptions share one derived batch.
    const std::vector<uint8_t> except(q_except, q_except + batch->data->desc.n_q);
    for (auto & derived : batch->derived) {
        if (derived->data->q_except == except) {
            *out = derived.get();
            return 0;
        }
    }
    auto data = std::make_shared<batch_data>(*batch->data);
    data->q_except = except;
    settle(*data);
    batch->derived.push_back(make_batch(batch->pager, std::move(data)));
    *out = batch->derived.back().get();
    return 0;
}

const kvp_batch_desc * kvp_batch_get(const kvp_batch * batch) {
    const batch_data * data = batch->view;
    return data ? &data->desc : nullptr;
}

uint32_t kvp_batch_pages(const kvp_batch * batch) {
    const batch_data * data = batch->view;
    return data ? (uint32_t) data->cells->pages.size() : 0;
}

uint32_t kvp_batch_first_page(const kvp_batch * batch) {
    const batch_data * data = batch->view;
    return data ? data->cells->first_page : 0;
}
