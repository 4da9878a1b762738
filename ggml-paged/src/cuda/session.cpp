#include "cuda/session.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

namespace kvp_gpu {

// --- pinned memory --------------------------------------------------------------------

pinned_block::~pinned_block() {
    gpu_.pinned_free(memory_);
}

uint8_t * pinned_block::at_least(size_t bytes) {
    if (bytes > bytes_) {
        gpu_.pinned_free(memory_);
        memory_ = static_cast<uint8_t *>(gpu_.pinned_alloc(bytes));
        bytes_ = memory_ ? bytes : 0;
    }
    return memory_;
}

// --- memory ---------------------------------------------------------------------------

int op_session::fail(int error, const std::string & sentence) {
    if (error_.empty()) {
        error_ = sentence;
    }
    return error;
}

int op_session::take(size_t bytes, uint8_t ** out, const char * what) {
    *out = static_cast<uint8_t *>(gpu_.pool_alloc(std::max<size_t>(bytes, 16)));
    if (!*out) {
        return fail(-ENOMEM, std::string("Paged attention on CUDA found no ") + std::to_string(bytes) + " bytes of device memory for "
                    + what + ": " + gpu_.last_error() + ". A smaller batch or page size needs less.");
    }
    taken_.push_back(*out);
    return 0;
}

partials op_session::partials_at(uint8_t * block, uint64_t rows) const {
    float * floats = reinterpret_cast<float *>(block);
    // acc is read 16 bytes at a time.
    const uint64_t padded = (rows + 3) / 4 * 4;
    return {floats, floats + padded, floats + 2 * padded};
}

int op_session::take_memory(size_t metadata_bytes, uint32_t hot_launches) {
    const kvp_layer_desc & layer = *op_.layer;
    split_ = split_attend(op_.desc->n_q, op_.group, layer.kv_heads, layer.dv, op_.page_cells);
    // A launch has many hot pages as long as their partials stay small beside K and V. A
    // page of one split continues the running sums itself, hot or streamed, for the same
    // bits.
    batch_pages_ = split_.decode_rows && split_.splits > 1 ? std::min(std::max(hot_launches, 1u), launch_pages) : 1;
    const uint64_t blocks = uint64_t(batch_pages_) * split_.splits;
    // merge_host's block is here, too.
    const uint64_t rows = (blocks * op_.rows + 3) / 4 * 4, state_rows = (uint64_t(op_.rows) + 3) / 4 * 4;
    const size_t row_floats = 2 + layer.dv;
    int e = take(state_rows * row_floats * sizeof(float), &state_, "results");
    e = e ? e : take(rows * row_floats * sizeof(float), &scratch_, "partial results");
    e = e ? e : take(metadata_bytes, &meta_, "positions and sequences of cells");
    if (!e && (new_rows() || op_.desc->reserve)) {
        e = take(op_.desc->n_q * op_.row_k, &new_k_, "new rows of K");
        e = e ? e : take(op_.desc->n_q * op_.row_v, &new_v_, "new rows of V");
    }
    return e;
}

void op_session::release() {
    while (!taken_.empty()) {
        gpu_.pool_free(taken_.back());
        taken_.pop_back();
    }
}

int op_session::reserve(uint32_t slots) {
    uint8_t * staging = nullptr;
    int e = take_memory(metadata_bytes_max(op_), hot_.enabled_for(op_) ? op_.list_pages : 0);
    e = e ? e : take(slots * op_.page_bytes, &staging, "staging slots");
    release();
    return e;
}

// --- before the pages -----------------------------------------------------------------

int op_session::prepare(const std::vector<uint32_t> & pages) {
    pages_ = pages;
    layout_ = lay_out_metadata(op_, pages);
    if (new_rows()) {
        for (uint32_t i = 0; i < op_.desc->n_q; ++i) {
            written_.push_back(op_.desc->q_cell[i] / op_.page_cells);
        }
        std::sort(written_.begin(), written_.end());
        written_.erase(std::unique(written_.begin(), written_.end()), written_.end());
    }
    int e = take_memory(layout_.bytes, hot_.hits());
    e = e ? e : upload(pages);
    return e || !new_rows() ? e : quantize_rows();
}

int op_session::upload(const std::vector<uint32_t> & pages) {
    // The last op's copy may still read the block.
    if (gpu_.sync(event_uploaded)) {
        return fail(-EIO, gpu_.last_error());
    }
    uint8_t * block = metadata_.at_least(layout_.bytes);
    if (!block) {
        return fail(-ENOMEM, "Paged attention on CUDA found no page-locked memory for the metadata of a batch.");
    }
    write_metadata(op_, pages, layout_, block);
    if (gpu_.copy_in(stream_compute, meta_, block, layout_.bytes) || gpu_.record(stream_compute, event_uploaded)) {
        return fail(-EIO, gpu_.last_error());
    }
    return 0;
}

int op_session::quantize_one(const kvp_f32 & from, uint32_t elements, int type, size_t cell_bytes, uint8_t * to) {
    quantize_args a = {};
    a.src = from.data;
    a.dst = to;
    a.row_stride = from.row_stride / int64_t(sizeof(float));
    a.head_stride = from.head_stride / int64_t(sizeof(float));
    a.n = op_.desc->n_q;
    a.heads = op_.layer->kv_heads;
    a.elements = elements;
    a.type = uint32_t(type);
    a.row = uint32_t(cell_bytes / a.heads);
    return gpu_.quantize(a);
}

int op_session::quantize_rows() {
    const size_t k = op_.desc->n_q * op_.row_k, v = op_.desc->n_q * op_.row_v;
    uint8_t * host = rows_.at_least(k + v);
    if (!host) {
        return fail(-ENOMEM, "Paged attention on CUDA found no page-locked memory for the new rows of a batch.");
    }
    int e = quantize_one(io_.k_new, op_.layer->dk, op_.layer->type_k, op_.row_k, new_k_);
    e = e ? e : quantize_one(io_.v_new, op_.layer->dv, op_.layer->type_v, op_.row_v, new_v_);
    e = e ? e : gpu_.record(stream_compute, event_rows);
    e = e ? e : gpu_.wait(stream_back, event_rows);
    e = e ? e : gpu_.copy_out(stream_back, host, new_k_, k);
    e = e ? e : gpu_.copy_out(stream_back, host + k, new_v_, v);
    e = e ? e : gpu_.record(stream_back, event_back);
    return e ? fail(-EIO, gpu_.last_error()) : 0;
}

// --- after them -----------------------------------------------------------------------

int op_session::settle() {
    if (!new_rows()) {
        return 0;
    }
    // The pool must not reuse new_k_ and new_v_ before they were read.
    if (gpu_.sync(event_back)) {
        return fail(-EIO, gpu_.last_error());
    }
    const uint8_t * host = rows_.at_least(0);
    const int e = op_.iface->rows_write(op_.pager, op_.params->layer, op_.desc->q_cell, op_.desc->n_q, host,
                                        host + op_.desc->n_q * op_.row_k);
    return e ? fail(e, "Paged attention on CUDA could not write the new rows of layer " + std::to_string(op_.params->layer)
                       + " to their pages; the pager says why.") : 0;
}

// --- questions of the plan ------------------------------------------------------------

bool op_session::writes_to(uint32_t page) const {
    return std::binary_search(written_.begin(), written_.end(), page);
}

kvp_page_ref op_session::ref(size_t index) const {
    return {pages_[index], cells_of(op_, pages_[index]), layout_.cls[index]};
}

// --- pages ----------------------------------------------------------------------------

int op_session::begin(uint32_t slots, size_t slot_bytes, uint32_t events) {
    int e = gpu_.make_events(own_events + events);
    slot_bytes_ = slot_bytes;
    slots_ = nullptr;
    if (!e && slots) {
        slots_ = static_cast<uint8_t *>(gpu_.pool_alloc(slots * slot_bytes));
        e = slots_ ? 0 : -ENOMEM;
    }
    // Work that the compute stream has not come to yet may still use the pool's memory.
    e = e ? e : gpu_.record(stream_compute, event_order);
    e = e ? e : gpu_.wait(stream_copy, event_order);
    merge_args a = {};
    a.state = partials_at(state_, op_.rows);
    a.rows = op_.rows;
    a.dv = op_.layer->dv;
    e = e ? e : gpu_.clear(a);
    if (e) {
        end();
    }
    return e;
}

void op_session::end() {
    gpu_.pool_free(slots_);
    slots_ = nullptr;
}

attend_args op_session::arguments() const {
    attend_args a = {};
    a.pos = reinterpret_cast<const int32_t *>(meta_ + layout_.pos);
    a.seqs = reinterpret_cast<const uint64_t *>(meta_ + layout_.seqs);
    a.queries = reinterpret_cast<const query_desc *>(meta_ + layout_.queries);
    a.q = io_.q.data;
    a.slopes = layout_.alibi ? reinterpret_cast<const float *>(meta_ + layout_.slopes) : nullptr;
    a.q_stride = io_.q.row_stride / int64_t(sizeof(float));
    a.q_head_stride = io_.q.head_stride / int64_t(sizeof(float));
    a.n_q = op_.desc->n_q;
    a.heads = op_.params->heads;
    a.kv_heads = op_.layer->kv_heads;
    a.group = op_.group;
    a.type_k = uint32_t(op_.layer->type_k);
    a.type_v = uint32_t(op_.layer->type_v);
    a.row_k = uint32_t(op_.row_k / a.kv_heads);
    a.row_v = uint32_t(op_.row_v / a.kv_heads);
    a.splits = split_.splits;
    a.span = split_.span;
    a.scale = op_.params->scale;
    a.softcap = op_.params->softcap;
    return a;
}

int op_session::attend(const launch_page * pages, uint32_t n) {
    attend_args a = arguments();
    for (uint32_t i = 0; i < n; ++i) {
        const kvp_page_ref & ref = *pages[i].ref;
        const size_t index = size_t(std::lower_bound(pages_.begin(), pages_.end(), ref.page) - pages_.begin());
        a.pages[i] = {pages[i].k, pages[i].v, layout_.first[index], ref.cells, layout_.cls[index] == KVP_FULL, 0};
    }
    const partials state = partials_at(state_, op_.rows);
    const uint32_t blocks = n * split_.splits;
    a.resume = blocks == 1;
    a.out = a.resume ? state : partials_at(scratch_, uint64_t(blocks) * op_.rows);
    const grid_size grid = {blocks, a.kv_heads, split_.tiles};
    int e = gpu_.attend(op_.layer->dk, op_.layer->dv, split_, grid, a);
    return e || a.resume ? e : merge_pages(a.out, n);
}

// Partials of pages are merged on two levels, for all rows and pages at a time: those of the splits of a
// page, and then those of the pages. So a page's bits are the same in any launch.
int op_session::merge_pages(const partials & from, uint32_t pages) {
    const uint32_t dv = op_.layer->dv, splits = split_.splits;
    int e = 0;
    if (splits > 1) {
        const partials others = {from.m + op_.rows, from.l + op_.rows, from.acc + uint64_t(op_.rows) * dv};
        e = gpu_.merge({others, from, splits - 1, op_.rows, dv, 1, pages, splits});
    }
    return e ? e : gpu_.merge({from, partials_at(state_, op_.rows), pages, op_.rows, dv, splits, 1, 0});
}

int op_session::patch_page(uint32_t page, uint8_t * at) {
    if (!writes_to(page)) {
        return 0;
    }
    patch_args a = {};
    a.new_k = new_k_;
    a.new_v = new_v_;
    a.cells = reinterpret_cast<const uint32_t *>(meta_ + layout_.new_cells);
    a.k = at;
    a.v = at + op_.v_offset;
    a.n = op_.desc->n_q;
    a.first_cell = page * op_.page_cells;
    a.page_cells = op_.page_cells;
    a.cell_k = uint32_t(op_.row_k);
    a.cell_v = uint32_t(op_.row_v);
    return gpu_.patch(a);
}

int op_session::attend_hot(const kvp_page_ref * pages, uint32_t n) {
    int e = 0;
    for (uint32_t first = 0; first < n && !e; first += batch_pages_) {
        launch_page some[launch_pages];
        const uint32_t m = std::min(batch_pages_, n - first);
        for (uint32_t i = 0; i < m && !e; ++i) {
            const kvp_page_ref & ref = pages[first + i];
            bool usable = false;
            uint8_t * at = hot_.copy_of(ref.page, &usable);
            e = patch_page(ref.page, at);
            some[i] = {at, at + op_.v_offset, &ref};
        }
        e = e ? e : attend(some, m);
    }
    return e;
}

int op_session::keep_copy(const kvp_page_ref & page, const uint8_t * from, uint8_t * to) {
    const size_t k = page.cells * op_.row_k, v = page.cells * op_.row_v;
    if (page.cells == op_.page_cells) {
        return gpu_.copy_within(to, from, op_.v_offset + v);
    }
    const int e = gpu_.copy_within(to, from, k);
    return e ? e : gpu_.copy_within(to + op_.v_offset, from + op_.v_offset, v);
}

int op_session::attend_slot(uint32_t slot, const kvp_page_ref & page) {
    uint8_t * at = slots_ + slot * slot_bytes_;
    int e = patch_page(page.page, at);
    bool usable = false;
    uint8_t * copy = hot_.copy_of(page.page, &usable);
    if (!e && copy) {
        e = keep_copy(page, at, copy);
    }
    const launch_page one = {at, at + op_.v_offset, &page};
    return e ? e : attend(&one, 1);
}

int op_session::merge_host(const kvp_partial & partial) {
    // The host's block is m, l, acc without padding; copied in parts it suits the kernels.
    const partials to = partials_at(scratch_, partial.rows);
    int e = gpu_.copy_in(stream_compute, to.m, partial.m, partial.rows * sizeof(float));
    e = e ? e : gpu_.copy_in(stream_compute, to.l, partial.l, partial.rows * sizeof(float));
    e = e ? e : gpu_.copy_in(stream_compute, to.acc, partial.acc, size_t(partial.rows) * partial.dv * sizeof(float));
    return e ? e : gpu_.merge({to, partials_at(state_, op_.rows), 1, op_.rows, op_.layer->dv, 1, 1, 0});
}

int op_session::finish() {
    return gpu_.finish({partials_at(state_, op_.rows), io_.sinks, io_.out, op_.rows, op_.params->heads, op_.layer->dv});
}

// --- the executor's table -------------------------------------------------------------

kvp_device op_session::device() {
    kvp_device d = {};
    d.ctx = this;
    d.begin = [](void * c, uint32_t slots, size_t bytes, uint32_t events) { return of(c).begin(slots, bytes, events); };
    d.end = [](void * c) { of(c).end(); };
    d.h2d = [](void * c, kvp_stream s, uint32_t slot, size_t offset, const void * src, size_t bytes) {
        return of(c).gpu_.copy_in(stream(s), of(c).slots_ + slot * of(c).slot_bytes_ + offset, src, bytes);
    };
    d.event_record = [](void * c, kvp_stream s, uint32_t event) { return of(c).gpu_.record(stream(s), own_events + event); };
    d.event_wait = [](void * c, kvp_stream s, uint32_t event) { return of(c).gpu_.wait(stream(s), own_events + event); };
    d.event_sync = [](void * c, uint32_t event) { return of(c).gpu_.sync(own_events + event); };
    if (gpu_.can_time()) {
        d.elapsed = [](void * c, uint32_t from, uint32_t to, uint64_t * ns) {
            return of(c).gpu_.elapsed(own_events + from, own_events + to, ns);
        };
    }
    d.attend_hot = [](void * c, const kvp_page_ref * pages, uint32_t n) { return of(c).attend_hot(pages, n); };
    d.attend_slot = [](void * c, uint32_t slot, const kvp_page_ref * page) { return of(c).attend_slot(slot, *page); };
    d.merge_host = [](void * c, const kvp_partial * partial) { return of(c).merge_host(*partial); };
    d.finish = [](void * c) { return of(c).finish(); };
    d.drain = [](void * c) { return of(c).gpu_.drain(); };
    d.last_error = [](void * c) { return of(c).gpu_.last_error(); };
    return d;
}

} // namespace kvp_gpu
