#include "fixture.h"

#include <algorithm>

small_pager::small_pager(uint32_t page_cells, uint32_t n_frames, const std::vector<kvp_layer_desc> & layers,
                         int (*io_fault)(void *, int, uint64_t, size_t), void * user) : frames(n_frames) {
    const auto aligned = [](size_t n) { return (n + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN; };
    size_t page_bytes = 0;
    for (const kvp_layer_desc & l : layers) {
        const size_t cells = (size_t) page_cells * l.kv_heads;
        page_bytes = std::max(page_bytes, aligned(cells * kvp_row_bytes(l.type_k, l.dk)) + aligned(cells * kvp_row_bytes(l.type_v, l.dv)));
    }
    kvp_config config{};
    config.page_cells    = page_cells;
    config.ram_bytes     = n_frames * page_bytes;
    config.spill_dir     = ".";
    config.io_fault      = io_fault;
    config.io_fault_user = user;
    EXPECT_EQ(kvp_pager_create(&config, &p), 0) << kvp_last_error();
    for (const kvp_layer_desc & l : layers) {
        uint32_t number;
        EXPECT_EQ(kvp_layer_add(p, &l, &number), 0) << kvp_last_error();
    }
    EXPECT_EQ(kvp_pager_start(p), 0) << kvp_last_error();
    EXPECT_EQ(kvp_pager_frames(p), n_frames);
}

void small_pager::write(uint32_t layer, uint32_t cell, const std::vector<float> & k, const std::vector<float> & v) {
    const kvp_layer_desc & l = *kvp_layer_get(p, layer);
    std::vector<uint8_t> rows_k(kvp_layer_row_k(p, layer)), rows_v(kvp_layer_row_v(p, layer));
    for (uint32_t h = 0; h < l.kv_heads; h++) {
        kvp_quantize_row(l.type_k, &k[h * l.dk], &rows_k[h * rows_k.size() / l.kv_heads], l.dk);
        kvp_quantize_row(l.type_v, &v[h * l.dv], &rows_v[h * rows_v.size() / l.kv_heads], l.dv);
    }
    ASSERT_EQ(kvp_rows_write(p, layer, &cell, 1, rows_k.data(), rows_v.data()), 0) << kvp_last_error();
}

kvp_batch_desc batch_args::desc() const {
    kvp_batch_desc d{};
    d.first_cell = first_cell;
    d.n_cells    = (uint32_t) pos.size();
    d.pos        = pos.data();
    d.seqs       = seqs.data();
    d.n_q        = (uint32_t) q_pos.size();
    d.q_pos      = q_pos.data();
    d.q_seq      = q_seq.data();
    d.q_cell     = q_cell.empty() ? nullptr : q_cell.data();
    d.q_except   = q_except.empty() ? nullptr : q_except.data();
    d.q_select   = q_select.empty() ? nullptr : q_select.data();
    d.window     = window;
    d.chunk      = chunk;
    return d;
}

op_args::op_args(const kvp_layer_desc & layer, uint32_t heads, uint32_t n_q, bool rows)
    : q((size_t) n_q * heads * layer.dk), out((size_t) n_q * heads * layer.dv, -7.0f) {
    if (rows) {
        k_new.resize((size_t) n_q * layer.kv_heads * layer.dk);
        v_new.resize((size_t) n_q * layer.kv_heads * layer.dv);
    }
}

kvp_io op_args::io(const kvp_layer_desc & layer, uint32_t heads) {
    const auto strided = [](const std::vector<float> & x, uint32_t n, uint32_t dim) {
        return kvp_f32{x.empty() ? nullptr : x.data(), (int64_t) (n * dim * sizeof(float)), (int64_t) (dim * sizeof(float))};
    };
    kvp_io io{};
    io.q     = strided(q, heads, layer.dk);
    io.k_new = strided(k_new, layer.kv_heads, layer.dk);
    io.v_new = strided(v_new, layer.kv_heads, layer.dv);
    io.sinks = sinks.empty() ? nullptr : sinks.data();
    io.out   = out.data();
    return io;
}
