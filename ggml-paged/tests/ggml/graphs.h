// The same attention as two graphs: over pages, and as ggml has it.
#pragma once

#include <memory>

#include "case.h"
#include "engine.h"

struct ggml_context_deleter {
    void operator()(ggml_context * c) const { ggml_free(c); }
};
struct ggml_buffer_deleter {
    void operator()(ggml_backend_buffer_t b) const { ggml_backend_buffer_free(b); }
};
using context_ptr = std::unique_ptr<ggml_context, ggml_context_deleter>;
using buffer_ptr  = std::unique_ptr<ggml_backend_buffer, ggml_buffer_deleter>;

// What is in the computing backend's memory before a graph runs. The scheduler places a
// graph's nodes by it, as it does with a model's weights.
class layer_weights {
public:
    // With a cache there are K and V of all cells for stock attention, unused ones zero.
    layer_weights(const engine & e, const test_case & c, const case_inputs & in, bool cache);

    ggml_tensor * ones_k = nullptr;  // [dk]
    ggml_tensor * ones_v = nullptr;  // [dv]
    ggml_tensor * sinks = nullptr;   // [heads], NULL: none
    ggml_tensor * k = nullptr;       // [dk * kv_heads, cells]
    ggml_tensor * v = nullptr;

private:
    context_ptr ctx_;
    buffer_ptr  weights_, cache_;
};

// Cells of stock attention's cache: CUDA's quicker kernels want whole blocks of them.
uint32_t stock_cells(const case_inputs & in);

enum class rows_kind {
    separate,  // q, k and v are tensors of their own
    fused,     // q, k and v are parts of the rows of one tensor, as of one projection
    none,      // q alone: the batch's rows are stored already
};

// A graph and its inputs, which are in host memory.
class attention_graph {
public:
    static attention_graph paged(const engine & e, const layer_weights & w, const test_case & c, const case_inputs & in,
                                 void * op, rows_kind rows = rows_kind::separate);
    static attention_graph stock(const engine & e, const layer_weights & w, const test_case & c, const case_inputs & in);

    ggml_cgraph * graph() const { return graph_; }
    ggml_tensor * attention() const { return attention_; }

    // compute runs the graph with a scheduler, as Ollama's ComputeWithNotify does, and
    // returns the result. Throws if the attention was not computed by the backend it is for.
    std::vector<float> compute(const engine & e, ggml_backend_t where) const;
    // run does the same without looking at anything, for timing.
    void run(const engine & e) const;

private:
    attention_graph();
    void make_rows(const layer_weights & w, const test_case & c, rows_kind rows);
    void finish(const engine & e, const layer_weights & w);
    ggml_tensor * input(ggml_type type, int64_t a, int64_t b, int64_t n) const;

    context_ptr   inputs_ctx_, ctx_;
    buffer_ptr    inputs_;
    ggml_cgraph * graph_ = nullptr;
    ggml_tensor * q_ = nullptr, * k_ = nullptr, * v_ = nullptr;        // inputs of attention
    ggml_tensor * q_in_ = nullptr, * k_in_ = nullptr, * v_in_ = nullptr; // inputs; fused: q_in_ alone
    ggml_tensor * mask_ = nullptr, * cells_ = nullptr;
    ggml_tensor * attention_ = nullptr, * out_ = nullptr;
};
