#include "paged.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace {

constexpr size_t CACHE_LINE_BYTES = 64;

uint64_t aligned(uint64_t bytes) { return (bytes + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN; }

void check(int error, const char * what) {
    if (error != 0) {
        throw std::runtime_error(std::string(what) + " failed: " + kvp_last_error());
    }
}

}  // namespace

uint64_t paged_shape::page_bytes() const {
    return 2 * aligned(uint64_t(page_cells) * kv_heads * kvp_row_bytes(type, dim));
}

uint64_t paged_shape::cache_bytes() const {
    const uint64_t pages = (tokens + page_cells - 1) / page_cells;
    return layers * pages * page_bytes();
}

paged_attention::paged_attention(const paged_shape & shape_, const cache_rows & rows, std::vector<float> q_, team & threads_)
    : shape(shape_), threads(threads_), pos(shape.tokens), q_pos(shape.n_q), seqs(shape.tokens, 1), q_seq(shape.n_q, 0),
      q_cell(shape.n_q), marks(shape.n_q, 1), q(std::move(q_)) {
    std::iota(pos.begin(), pos.end(), 0);
    std::iota(q_pos.begin(), q_pos.end(), int32_t(shape.tokens - shape.n_q));
    std::iota(q_cell.begin(), q_cell.end(), shape.tokens - shape.n_q);
    if (shape.new_rows) {
        k_new = random_queries(size_t(shape.n_q) * shape.kv_heads * shape.dim, 1.0f, 11);
        v_new = random_queries(size_t(shape.n_q) * shape.kv_heads * shape.dim, 1.0f, 12);
    }
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        outs.emplace_back(size_t(shape.n_q) * shape.heads * shape.dim);
    }
    make_pager();
    fill(rows);
}

void paged_attention::make_pager() {
    kvp_config config = {};
    config.page_cells = shape.page_cells;
    config.ram_bytes  = shape.ram_bytes ? shape.ram_bytes : shape.cache_bytes();
    config.spill_dir  = shape.spill_dir.empty() ? nullptr : shape.spill_dir.c_str();
    config.io_threads = shape.io_threads;
    config.direct     = 1;
    kvp_pager * raw = nullptr;
    check(kvp_pager_create(&config, &raw), "Making the pager");
    pager.reset(raw);

    const uint32_t pages = (shape.tokens + shape.page_cells - 1) / shape.page_cells;
    kvp_layer_desc desc = {};
    desc.n_cells  = pages * shape.page_cells;
    desc.kv_heads = shape.kv_heads;
    desc.dk = desc.dv = shape.dim;
    desc.type_k = desc.type_v = shape.type;
    for (uint32_t i = 0; i < shape.layers; i++) {
        uint32_t layer = 0;
        check(kvp_layer_add(raw, &desc, &layer), "Adding a layer");
    }
    check(kvp_pager_start(raw), "Starting the pager");
    check(kvp_reserve(raw, 0, pages), "Making room for the pages");
}

void paged_attention::fill(const cache_rows & rows) {
    for (uint32_t first = 0, number = 0; first < shape.tokens; first += shape.page_cells, number++) {
        const uint32_t n = std::min(shape.page_cells, shape.tokens - first);
        for (uint32_t layer = 0; layer < shape.layers; layer++) {
            kvp_page page;
            check(kvp_pin(pager.get(), layer, number, &page), "Writing a page");
            rows.fill(layer, first, n, page.k, page.v);
            kvp_unpin(pager.get(), layer, number, 1);
        }
    }
}

void paged_attention::begin() {
    kvp_batch_desc desc = {};
    desc.n_cells = shape.tokens;
    desc.pos     = pos.data();
    desc.seqs    = seqs.data();
    desc.n_q     = shape.n_q;
    desc.q_pos   = q_pos.data();
    desc.q_seq   = q_seq.data();
    desc.q_cell  = q_cell.data();
    desc.window  = INT32_MAX;
    desc.q_select = shape.select_cells > 0 ? marks.data() : nullptr;
    kvp_batch * batch = nullptr;
    check(kvp_batch_begin(pager.get(), &desc, &batch), "Beginning a batch");
    ops.clear();
    size_t work_bytes = 0;
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        const kvp_params params = {layer, shape.heads, shape.scale, 0.0f, 0.0f, shape.select_cells};
        kvp_op * op = nullptr;
        check(kvp_op_new(batch, &params, &op), "Making an op");
        ops.push_back(op);
        work_bytes = std::max(work_bytes, kvp_cpu_work_bytes(op, threads.size()));
    }
    work.resize(std::max(work.size(), work_bytes + CACHE_LINE_BYTES));
}

void paged_attention::run() {
    uint8_t * aligned_work = work.data() + (CACHE_LINE_BYTES - reinterpret_cast<uintptr_t>(work.data()) % CACHE_LINE_BYTES);
    const size_t work_bytes = work.size() - size_t(aligned_work - work.data());
    const int64_t head_bytes = shape.dim * int64_t(sizeof(float));
    threads.run([&](uint32_t member) {
        for (uint32_t layer = 0; layer < shape.layers; layer++) {
            kvp_io io = {};
            io.q   = {q.data(), shape.heads * head_bytes, head_bytes};
            if (shape.new_rows) {
                io.k_new = {k_new.data(), shape.kv_heads * head_bytes, head_bytes};
                io.v_new = {v_new.data(), shape.kv_heads * head_bytes, head_bytes};
            }
            io.out = outs[layer].data();
            // An error is sticky in the pager, which is asked below.
            kvp_cpu_forward(ops[layer], &io, member, threads.size(), aligned_work, work_bytes);
            threads.barrier();
        }
    });
    const char * message = nullptr;
    if (kvp_pager_error(pager.get(), &message) != 0) {
        throw std::runtime_error(std::string("Paged attention failed: ") + message);
    }
}

kvp_stats paged_attention::stats() const {
    kvp_stats out;
    kvp_pager_stats(pager.get(), &out);
    return out;
}

kvp_select_stats paged_attention::select_stats() const {
    kvp_select_stats out;
    kvp_pager_select_stats(pager.get(), &out);
    return out;
}
