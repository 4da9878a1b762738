#include "stock.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "processors.h"

namespace {

struct context_free {
    void operator()(ggml_context * context) const { ggml_free(context); }
};
using context_ptr = std::unique_ptr<ggml_context, context_free>;

struct pool_free {
    void operator()(ggml_threadpool * pool) const { ggml_threadpool_free(pool); }
};

// Bytes of the tensors' data and headers; a context rounds each tensor up a little.
size_t data_bytes(const stock_shape & s) {
    const size_t cache = 2 * size_t(s.layers) * s.tokens * s.kv_heads * ggml_row_size(ggml_type(s.type), s.dim);
    const size_t rows  = size_t(s.layers + 1) * s.n_q * s.heads * s.dim * sizeof(float);
    const size_t mask  = size_t(s.n_q) * s.tokens * sizeof(ggml_fp16_t);
    constexpr size_t rounding = 256;
    return cache + rows + mask + (3 * s.layers + 2) * (ggml_tensor_overhead() + rounding);
}

context_ptr make_context(size_t bytes, bool headers_only) {
    context_ptr context(ggml_init({bytes, nullptr, headers_only}));
    if (!context) {
        throw std::runtime_error("ggml could not reserve " + std::to_string(bytes) + " bytes for stock attention.");
    }
    return context;
}

void fill_causal(ggml_tensor * mask, const stock_shape & s) {
    const ggml_fp16_t seen = ggml_fp32_to_fp16(0.0f), hidden = ggml_fp32_to_fp16(-INFINITY);
    auto * cells = static_cast<ggml_fp16_t *>(mask->data);
    for (uint32_t i = 0; i < s.n_q; i++) {
        for (uint32_t c = 0; c < s.tokens; c++) {
            *cells++ = c <= s.tokens - s.n_q + i ? seen : hidden;
        }
    }
}

// place gives each thread a processor of its own, as the other side's have. The pool begins
// paused, so that the first run places the thread that calls it, not this one.
void place(ggml_threadpool_params & params, uint32_t threads) {
    const std::vector<uint32_t> all = processors();
    if (all.size() < threads || all.back() >= GGML_MAX_N_THREADS) {
        return;
    }
    for (const uint32_t processor : all) {
        params.cpumask[processor] = true;
    }
    params.strict_cpu = true;
    params.paused     = true;
}

class ggml_stock : public stock_attention {
public:
    ggml_stock(const stock_shape & shape, uint32_t threads)
        : graph_size(4 * shape.layers + 8),  // three views and a node per layer, the view of Q
          data(make_context(data_bytes(shape), false)),
          meta(make_context((graph_size + 8) * ggml_tensor_overhead() + ggml_graph_overhead_custom(graph_size, false), true)) {
        build(shape);
        ggml_threadpool_params params = ggml_threadpool_params_default(int(threads));
        // Between graphs its threads would spin on for a tenth of a second, and share their
        // processors with the other side, which runs next.
        params.poll = 0;
        place(params, threads);
        pool.reset(ggml_threadpool_new(&params));
        plan = ggml_graph_plan(graph, int(threads), pool.get());
        work.resize(plan.work_size);
        plan.work_data = work.data();
    }

    uint8_t * k(uint32_t layer) override { return static_cast<uint8_t *>(ks[layer]->data); }
    uint8_t * v(uint32_t layer) override { return static_cast<uint8_t *>(vs[layer]->data); }
    void set_q(const float * rows) override { std::memcpy(q->data, rows, ggml_nbytes(q)); }
    const float * out(uint32_t layer) const override { return static_cast<const float *>(outs[layer]->data); }

    void run() override {
        if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error("ggml could not compute stock attention.");
        }
    }

private:
    void build(const stock_shape & s) {
        ggml_context * d = data.get(), * m = meta.get();
        q     = ggml_new_tensor_3d(d, GGML_TYPE_F32, s.dim, s.heads, s.n_q);
        graph = ggml_new_graph_custom(m, graph_size, false);
        ggml_tensor * mask  = ggml_new_tensor_2d(d, GGML_TYPE_F16, s.tokens, s.n_q);
        ggml_tensor * query = ggml_permute(m, q, 0, 2, 1, 3);
        fill_causal(mask, s);
        for (uint32_t layer = 0; layer < s.layers; layer++) {
            ks.push_back(ggml_new_tensor_3d(d, ggml_type(s.type), s.dim, s.kv_heads, s.tokens));
            vs.push_back(ggml_new_tensor_3d(d, ggml_type(s.type), s.dim, s.kv_heads, s.tokens));
            outs.push_back(ggml_flash_attn_ext(m, query, ggml_permute(m, ks.back(), 0, 2, 1, 3),
                                               ggml_permute(m, vs.back(), 0, 2, 1, 3), mask, s.scale, 0.0f, 0.0f));
            ggml_flash_attn_ext_set_prec(outs.back(), GGML_PREC_F32);
            outs.back()->data = ggml_new_tensor_3d(d, GGML_TYPE_F32, s.dim, s.heads, s.n_q)->data;
            ggml_build_forward_expand(graph, outs.back());
        }
    }

    const size_t                                graph_size;
    context_ptr                                 data, meta;
    std::unique_ptr<ggml_threadpool, pool_free> pool;
    ggml_cgraph *                               graph = nullptr;
    ggml_tensor *                               q     = nullptr;
    std::vector<ggml_tensor *>                  ks, vs, outs;
    ggml_cplan                                  plan  = {};
    std::vector<uint8_t>                        work;
};

}  // namespace

std::unique_ptr<stock_attention> make_stock(const stock_shape & shape, uint32_t threads) {
    return std::unique_ptr<stock_attention>(new ggml_stock(shape, threads));
}

bool has_stock() { return true; }
