#include "cuda/op_view.h"

#include <errno.h>

#include <algorithm>

#include "cuda/split.h"

namespace kvp_gpu {

const char * refuses(const kvp_layer_desc * layer, uint32_t heads) {
    if (!has_kernels(layer->dk, layer->dv)) {
        return "there are CUDA kernels for heads of 64, 80, 96, 128, 256 and 512 elements, and of 576 with V of 512";
    }
    if (layer->kv_heads == 0 || heads % layer->kv_heads != 0) {
        return "the number of query heads is not a multiple of the number of K/V heads";
    }
    if (layer->kv_heads > 65535) {
        return "there are more K/V heads than a launch can have";
    }
    for (int type : {layer->type_k, layer->type_v}) {
        if (type != KVP_F16 && type != KVP_Q8_0 && type != KVP_Q4_0) {
            return "K and V must be f16, q8_0 or q4_0";
        }
    }
    const bool halves = (layer->type_k == KVP_F16 || layer->dk % 32 == 0) && (layer->type_v == KVP_F16 || layer->dv % 32 == 0);
    return halves ? nullptr : "quantized K and V need heads of a multiple of 32 elements";
}

int read_op(kvp_op * op, op_view * out, std::string * why) {
    op_view v = {};
    v.op = op;
    v.iface = reinterpret_cast<const kvp_op_head *>(op)->iface;
    // fail is the last of the required functions.
    if (v.iface->version != KVP_IFACE_VERSION || !KVP_IFACE_HAS(v.iface, fail)) {
        *why = "Paged attention on CUDA: the op comes from another version of ggml-paged; build both libraries from one tree.";
        return -EPROTO;
    }
    v.batch = v.iface->batch(op);
    v.pager = v.iface->pager(op);
    v.params = v.iface->params(op);
    v.desc = v.iface->batch_get(v.batch);
    if (!v.desc) {
        *why = "Paged attention on CUDA: the op's batch has been replaced by later ones; compute ops before more batches begin.";
        return -ESTALE;
    }
    v.layer = v.iface->layer_get(v.pager, v.params->layer);
    if (const char * reason = refuses(v.layer, v.params->heads)) {
        *why = std::string("Paged attention on CUDA cannot compute layer ") + std::to_string(v.params->layer) + ": " + reason + ".";
        return -ENOTSUP;
    }
    v.page_cells = v.iface->page_cells(v.pager);
    v.row_k = v.iface->layer_row_k(v.pager, v.params->layer);
    v.row_v = v.iface->layer_row_v(v.pager, v.params->layer);
    v.v_offset = v.iface->layer_v_offset(v.pager, v.params->layer);
    v.page_bytes = v.iface->layer_page_bytes(v.pager, v.params->layer);
    v.group = v.params->heads / v.layer->kv_heads;
    v.rows = v.desc->n_q * v.params->heads;
    v.list_pages = v.iface->batch_pages(v.batch);
    v.cpu_page = KVP_IFACE_HAS(v.iface, cpu_page) ? v.iface->cpu_page : nullptr;
    v.page_version = KVP_IFACE_HAS(v.iface, page_version) ? v.iface->page_version : nullptr;
    *out = v;
    return 0;
}

std::vector<uint32_t> pages_of(const op_view & op) {
    std::vector<uint32_t> pages(op.list_pages);
    pages.resize(op.iface->batch_list(op.batch, pages.data()));
    return pages;
}

uint32_t cells_of(const op_view & op, uint32_t page) {
    const uint64_t begin = uint64_t(page) * op.page_cells;
    const uint64_t end = uint64_t(op.desc->first_cell) + op.desc->n_cells;
    return uint32_t(std::min<uint64_t>(end - begin, op.page_cells));
}

} // namespace kvp_gpu
