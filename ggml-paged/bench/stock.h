// Stock attention: ggml's flash_attn_ext on the CPU, over K and V as Ollama's cache keeps
// them and with the dense mask that Ollama gives it.
#pragma once

#include <cstdint>
#include <memory>

struct stock_shape {
    uint32_t layers, tokens, n_q, heads, kv_heads, dim;
    int      type;   // of K and V; ggml's and kv_types.h's numbers are the same
    float    scale;
};

class stock_attention {
public:
    virtual ~stock_attention() = default;

    // K and V of a layer, [tokens][kv_heads][row], to be filled before run.
    virtual uint8_t * k(uint32_t layer) = 0;
    virtual uint8_t * v(uint32_t layer) = 0;

    // q is f32 [n_q][heads][dim], the same for all layers; query i is at position
    // tokens - n_q + i.
    virtual void set_q(const float * q) = 0;

    // run computes all layers as one graph. The thread that calls it computes too, and is
    // always the same: it may be bound to a processor. Throws std::runtime_error.
    virtual void run() = 0;

    // out is f32 [n_q][heads][dim].
    virtual const float * out(uint32_t layer) const = 0;
};

// make_stock is nullptr where the benchmark was built without ggml (KVP_GGML_SRC). Throws
// std::runtime_error where there is not enough memory.
std::unique_ptr<stock_attention> make_stock(const stock_shape & shape, uint32_t threads);

// has_stock says whether the benchmark was built with ggml.
bool has_stock();
