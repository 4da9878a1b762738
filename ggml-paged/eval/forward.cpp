#include "forward.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <memory>

#include "backend.h"
#include "paged_attn.h"

namespace {

struct pager_free {
    void operator()(kvp_pager * pager) const { kvp_pager_free(pager); }
};
using pager_ptr = std::unique_ptr<kvp_pager, pager_free>;

// check turns a failed call into an exception. Settings and shapes that the library
// refuses came from the case or the arguments.
void check(int error, const char * what, bool settings = false) {
    if (error == 0) {
        return;
    }
    const std::string sentence = std::string(what) + " failed: " + kvp_last_error();
    if (settings || error == -EINVAL) {
        throw bad_input(sentence);
    }
    throw std::runtime_error(sentence);
}

pager_ptr make_pager(const eval_case & c, const test_backend & backend, const std::string & spill, uint32_t & layer) {
    // Frames that no page can use would only make the arena larger.
    const uint32_t frames = std::min(c.ram_pages, c.pages());
    kvp_config config = {};
    config.page_cells = c.page_tokens;
    config.ram_bytes  = uint64_t(frames) * c.page_bytes();
    config.spill_dir  = frames < c.pages() ? spill.c_str() : nullptr;
    config.direct     = 1;
    if (backend.prepare) {
        backend.prepare(&config);
    }
    kvp_pager * raw = nullptr;
    check(kvp_pager_create(&config, &raw), "Making the pager", true);
    pager_ptr pager(raw);

    kvp_layer_desc desc = {};
    desc.n_cells  = c.pages() * c.page_tokens;
    desc.kv_heads = c.kv_heads;
    desc.dk       = c.dk;
    desc.dv       = c.dv;
    desc.type_k   = c.type_k;
    desc.type_v   = c.type_v;
    check(kvp_layer_add(raw, &desc, &layer), "Adding the layer");
    check(kvp_pager_start(raw), "Starting the pager");
    check(kvp_reserve(raw, 0, c.pages()), "Making room for the pages");
    return pager;
}

void put_rows(kvp_pager * pager, uint32_t layer, const eval_case & c) {
    std::vector<uint32_t> cells;
    for (uint32_t first = 0; first < c.tokens; first += c.page_tokens) {
        cells.resize(std::min(c.page_tokens, c.tokens - first));
        for (uint32_t i = 0; i < cells.size(); i++) {
            cells[i] = first + i;
        }
        check(kvp_rows_write(pager, layer, cells.data(), uint32_t(cells.size()), c.k.data() + first * c.row_k_bytes(),
                             c.v.data() + first * c.row_v_bytes()),
              "Writing K and V");
    }
}

// The op lives in the pager's ring of batches.
kvp_op * make_op(kvp_pager * pager, uint32_t layer, const eval_case & c) {
    const std::vector<uint8_t> except(c.causal ? 0 : c.n_q, 1);
    kvp_batch_desc desc = {};
    desc.n_cells  = c.tokens;
    desc.pos      = c.pos.data();
    desc.seqs     = c.seqs.data();
    desc.n_q      = c.n_q;
    desc.q_pos    = c.q_pos.data();
    desc.q_seq    = c.q_seq.data();
    desc.q_except = c.causal ? nullptr : except.data();
    desc.window   = c.window ? c.window : INT32_MAX;
    desc.chunk    = c.chunk;
    kvp_batch * batch = nullptr;
    check(kvp_batch_begin(pager, &desc, &batch), "Beginning the batch");

    kvp_params params = {layer, c.heads, c.scale, c.softcap, c.alibi, 0};
    kvp_op * op = nullptr;
    check(kvp_op_new(batch, &params, &op), "Making the op");
    return op;
}

const test_backend & find_backend(const eval_case & c) {
    if (const test_backend * found = test_backend_find(c.backend.c_str())) {
        return *found;
    }
    if (c.backend == "cuda" || c.backend == "emulated" || c.backend == "tensor") {
        throw bad_input("The backend \"" + c.backend + "\" was not built into this program" +
                        (c.backend == "cuda" ? "; configure with -DKVP_CUDA=ON." : "."));
    }
    throw bad_input("The backend \"" + c.backend + "\" is not known; there are \"cpu\", \"emulated\", \"tensor\" and \"cuda\".");
}

}  // namespace

std::vector<float> forward(const eval_case & c, uint32_t threads, const std::string & spill) {
    const test_backend & backend = find_backend(c);
    uint32_t layer = 0;
    const pager_ptr pager = make_pager(c, backend, spill, layer);
    if (const char * reason = backend.refuses(kvp_layer_get(pager.get(), layer), c.heads)) {
        throw bad_input("The backend \"" + c.backend + "\" cannot compute this case: " + reason);
    }
    put_rows(pager.get(), layer, c);
    kvp_op * op = make_op(pager.get(), layer, c);

    std::vector<float> out(size_t(c.n_q) * c.heads * c.dv);
    const int64_t head_bytes = c.dk * int64_t(sizeof(float));
    kvp_io io = {};
    io.q     = {c.q.data(), c.heads * head_bytes, head_bytes};
    io.sinks = c.sinks ? c.sink_scores.data() : nullptr;
    io.out   = out.data();
    check(backend.forward(op, &io, threads, 0), "Paged attention");

    const char * message = nullptr;
    if (kvp_pager_error(pager.get(), &message) != 0) {
        throw std::runtime_error(std::string("Paged attention failed: ") + message);
    }
    return out;
}
