// Paged attention over several layers of equal shape, as a forward pass runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paged_attn.h"
#include "rows.h"
#include "team.h"

struct paged_shape {
    uint32_t    layers, tokens, n_q, heads, kv_heads, dim;
    int         type;           // of K and V
    float       scale;
    uint32_t    page_cells;
    uint64_t    ram_bytes;      // 0: as much as all pages take
    uint32_t    io_threads;
    std::string spill_dir;      // empty: none
    bool        new_rows;       // every pass writes its rows of K and V first
    uint32_t    select_cells;   // 0: queries attend to all

    uint64_t page_bytes() const;
    uint64_t cache_bytes() const;   // of all pages of all layers
};

class paged_attention {
public:
    // The cache is filled with rows; q is f32 [n_q][heads][dim], used by all layers. Query
    // i is at position tokens - n_q + i. Throws std::runtime_error, as all of these do.
    paged_attention(const paged_shape & shape, const cache_rows & rows, std::vector<float> q, team & threads);

    // begin makes the batch and the ops of a forward pass, run computes them.
    void begin();
    void run();

    // out is f32 [n_q][heads][dim].
    const float * out(uint32_t layer) const { return outs[layer].data(); }
    kvp_stats     stats() const;
    kvp_select_stats select_stats() const;

    // ask sets the queries of the passes that follow.
    void ask(std::vector<float> queries) { q = std::move(queries); }

private:
    struct pager_free {
        void operator()(kvp_pager * pager) const { kvp_pager_free(pager); }
    };

    void make_pager();
    void fill(const cache_rows & rows);

    paged_shape                            shape;
    team &                                 threads;
    std::unique_ptr<kvp_pager, pager_free> pager;
    std::vector<int32_t>                   pos, q_pos;
    std::vector<uint64_t>                  seqs;
    std::vector<uint32_t>                  q_seq;
    std::vector<uint32_t>                  q_cell;
    std::vector<uint8_t>                   marks;   // of kvp_batch_desc.q_select
    std::vector<float>                     q, k_new, v_new;
    std::vector<std::vector<float>>        outs;
    std::vector<kvp_op *>                  ops;
    std::vector<uint8_t>                   work;
};
