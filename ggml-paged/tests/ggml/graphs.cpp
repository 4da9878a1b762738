#include "graphs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "reference.h"

namespace {

constexpr uint32_t STOCK_BLOCK = 256;
constexpr size_t   TENSORS_MAX = 64;

context_ptr make_context() {
    return context_ptr(ggml_init({ggml_tensor_overhead() * TENSORS_MAX + ggml_graph_overhead(), nullptr, true}));
}

buffer_ptr allocate(ggml_context * ctx, ggml_backend_buffer_type_t type, ggml_backend_buffer_usage usage) {
    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, type));
    if (!buffer) {
        throw std::runtime_error("there is no memory for the tensors of the test.");
    }
    ggml_backend_buffer_set_usage(buffer.get(), usage);
    return buffer;
}

void set(const engine & e, ggml_tensor * t, const void * data) {
    if (e.allocates()) {
        ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
    }
}

// cache_rows are rows of all cells with unused ones zero, padded to whole blocks.
std::vector<uint8_t> cache_rows(const case_inputs & in, const std::vector<uint8_t> & rows, size_t cell_bytes) {
    std::vector<uint8_t> out(stock_cells(in) * cell_bytes, 0);
    for (uint32_t c = 0; c < in.n_cells; c++) {
        if (in.seqs[c] != 0) {
            std::memcpy(&out[c * cell_bytes], &rows[c * cell_bytes], cell_bytes);
        }
    }
    return out;
}

std::vector<ggml_fp16_t> mask_of(const case_inputs & in) {
    const kvp_batch_desc desc = in.batch_desc();
    const uint32_t n = stock_cells(in);
    std::vector<float> mask(in.q_pos.size() * (size_t) n, -INFINITY);
    for (size_t i = 0; i < in.q_pos.size(); i++) {
        const reference_query q = {in.q_pos[i], in.q_seq[i], !in.q_except.empty() && in.q_except[i], nullptr};
        for (uint32_t c = 0; c < in.n_cells; c++) {
            if (reference_visible(desc, q, in.pos[c], in.seqs[c])) {
                // ggml multiplies this with a head's slope.
                mask[i * n + c] = in.params.max_bias > 0 ? (float) std::min(0, in.pos[c] - in.q_pos[i]) : 0.0f;
            }
        }
    }
    std::vector<ggml_fp16_t> out(mask.size());
    ggml_fp32_to_fp16_row(mask.data(), out.data(), (int64_t) mask.size());
    return out;
}

// fuse lays the rows of each token next to each other: all heads of q, of k, of v.
std::vector<float> fuse(const test_case & c, const case_inputs & in) {
    std::vector<float> out;
    const auto add = [&](const std::vector<float> & rows, uint32_t token, size_t n) {
        out.insert(out.end(), rows.begin() + token * n, rows.begin() + (token + 1) * n);
    };
    for (uint32_t i = 0; i < c.n_q; i++) {
        add(in.q, i, (size_t) c.heads * c.dk);
        add(in.k_new, i, (size_t) c.kv_heads * c.dk);
        add(in.v_new, i, (size_t) c.kv_heads * c.dv);
    }
    return out;
}

} // namespace

uint32_t stock_cells(const case_inputs & in) {
    return (in.n_cells + STOCK_BLOCK - 1) / STOCK_BLOCK * STOCK_BLOCK;
}

layer_weights::layer_weights(const engine & e, const test_case & c, const case_inputs & in, bool cache) : ctx_(make_context()) {
    const ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(e.computing());
    ones_k = ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_F32, c.dk);
    ones_v = ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_F32, c.dv);
    sinks  = in.sinks.empty() ? nullptr : ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_F32, c.heads);
    weights_ = allocate(ctx_.get(), type, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    const std::vector<float> ones(std::max(c.dk, c.dv), 1.0f);
    set(e, ones_k, ones.data());
    set(e, ones_v, ones.data());
    if (sinks) {
        set(e, sinks, in.sinks.data());
    }
    if (cache) {
        const uint32_t cells = stock_cells(in);
        k = ggml_new_tensor_2d(ctx_.get(), (ggml_type) c.type_k, (int64_t) c.dk * c.kv_heads, cells);
        v = ggml_new_tensor_2d(ctx_.get(), (ggml_type) c.type_v, (int64_t) c.dv * c.kv_heads, cells);
        cache_ = allocate(ctx_.get(), type, GGML_BACKEND_BUFFER_USAGE_ANY);
        set(e, k, cache_rows(in, in.k, k->nb[1]).data());
        set(e, v, cache_rows(in, in.v, v->nb[1]).data());
    }
}

attention_graph::attention_graph() : inputs_ctx_(make_context()), ctx_(make_context()) {
    graph_ = ggml_new_graph(ctx_.get());
}

ggml_tensor * attention_graph::input(ggml_type type, int64_t a, int64_t b, int64_t n) const {
    ggml_tensor * t = ggml_new_tensor_3d(inputs_ctx_.get(), type, a, b, n);
    ggml_set_input(t);
    return t;
}

void attention_graph::make_rows(const layer_weights & w, const test_case & c, rows_kind rows) {
    ggml_context * ctx = ctx_.get();
    if (rows == rows_kind::fused) {
        const int64_t all = c.heads + 2 * (int64_t) c.kv_heads;
        q_in_ = input(GGML_TYPE_F32, c.dk, all, c.n_q);
        ggml_tensor * qkv = ggml_mul(ctx, q_in_, w.ones_k);
        const auto part = [&](int64_t first, int64_t heads) {
            return ggml_view_3d(ctx, qkv, c.dk, heads, c.n_q, qkv->nb[1], qkv->nb[2], (size_t) first * qkv->nb[1]);
        };
        q_ = part(0, c.heads);
        k_ = part(c.heads, c.kv_heads);
        v_ = part(c.heads + c.kv_heads, c.kv_heads);
        return;
    }
    q_in_ = input(GGML_TYPE_F32, c.dk, c.heads, c.n_q);
    q_ = ggml_mul(ctx, q_in_, w.ones_k);
    if (rows == rows_kind::separate) {
        k_in_ = input(GGML_TYPE_F32, c.dk, c.kv_heads, c.n_q);
        v_in_ = input(GGML_TYPE_F32, c.dv, c.kv_heads, c.n_q);
        k_ = ggml_mul(ctx, k_in_, w.ones_k);
        v_ = ggml_mul(ctx, v_in_, w.ones_v);
    }
}

void attention_graph::finish(const engine & e, const layer_weights & w) {
    out_ = ggml_mul(ctx_.get(), attention_, w.ones_v);
    ggml_set_output(out_);
    ggml_build_forward_expand(graph_, out_);
    inputs_ = allocate(inputs_ctx_.get(), ggml_backend_get_default_buffer_type(e.cpu()), GGML_BACKEND_BUFFER_USAGE_ANY);
}

attention_graph attention_graph::paged(const engine & e, const layer_weights & w, const test_case & c, const case_inputs & in,
                                       void * op, rows_kind rows) {
    attention_graph g;
    g.make_rows(w, c, rows);
    g.attention_ = ggml_flash_attn_ext_paged(g.ctx_.get(), g.q_, g.k_, g.v_, w.sinks, c.dv, op);
    g.finish(e, w);
    if (rows == rows_kind::fused) {
        set(e, g.q_in_, fuse(c, in).data());
        return g;
    }
    set(e, g.q_in_, in.q.data());
    if (rows == rows_kind::separate) {
        set(e, g.k_in_, in.k_new.data());
        set(e, g.v_in_, in.v_new.data());
    }
    return g;
}

attention_graph attention_graph::stock(const engine & e, const layer_weights & w, const test_case & c, const case_inputs & in) {
    attention_graph g;
    ggml_context * ctx = g.ctx_.get();
    g.make_rows(w, c, rows_kind::separate);
    g.mask_  = g.input(GGML_TYPE_F16, stock_cells(in), c.n_q, 1);
    g.cells_ = g.input(GGML_TYPE_I32, c.n_q, 1, 1);
    const auto store = [&](ggml_tensor * cache, ggml_tensor * rows) {
        rows = ggml_reshape_2d(ctx, rows, rows->ne[0] * rows->ne[1], rows->ne[2]);
        ggml_build_forward_expand(g.graph_, ggml_set_rows(ctx, cache, rows, g.cells_));
    };
    store(w.k, g.k_);
    store(w.v, g.v_);
    const auto heads_last = [&](ggml_tensor * cache, int64_t n) {
        return ggml_permute(ctx, ggml_reshape_3d(ctx, cache, n, c.kv_heads, stock_cells(in)), 0, 2, 1, 3);
    };
    g.attention_ = ggml_flash_attn_ext(ctx, ggml_permute(ctx, g.q_, 0, 2, 1, 3), heads_last(w.k, c.dk), heads_last(w.v, c.dv),
                                       g.mask_, in.params.scale, in.params.max_bias, in.params.softcap);
    ggml_flash_attn_ext_set_prec(g.attention_, GGML_PREC_F32);
    ggml_flash_attn_ext_add_sinks(g.attention_, w.sinks);
    g.finish(e, w);
    set(e, g.q_in_, in.q.data());
    set(e, g.k_in_, in.k_new.data());
    set(e, g.v_in_, in.v_new.data());
    set(e, g.mask_, mask_of(in).data());
    set(e, g.cells_, std::vector<int32_t>(in.q_cell.begin(), in.q_cell.end()).data());
    return g;
}

void attention_graph::run(const engine & e) const {
    if (ggml_backend_sched_graph_compute_async(e.sched(), graph_) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("the graph could not be computed.");
    }
    ggml_backend_sched_reset(e.sched());
    ggml_backend_sched_synchronize(e.sched());
}

std::vector<float> attention_graph::compute(const engine & e, ggml_backend_t where) const {
    ggml_backend_sched_reset(e.sched());
    if (!ggml_backend_sched_alloc_graph(e.sched(), graph_)) {
        throw std::runtime_error("there is no memory for the graph.");
    }
    ggml_backend_t chosen = ggml_backend_sched_get_tensor_backend(e.sched(), attention_);
    if (chosen != where) {
        throw std::runtime_error(std::string("attention was given to ") + (chosen ? ggml_backend_name(chosen) : "nobody") +
                                 ", not to " + ggml_backend_name(where));
    }
    run(e);
    std::vector<float> out((size_t) ggml_nelements(out_));
    ggml_backend_tensor_get(out_, out.data(), 0, ggml_nbytes(out_));
    return out;
}
