// Ops: an attention layer of a batch, and the table through which backends in other
// libraries reach everything.
#include <cerrno>
#include <cmath>

#include "batch/batch.h"
#include "pager/pager.h"

using namespace kvp;

namespace {

// The kernels read K and V in whole vectors of this many elements.
constexpr uint32_t HEAD_DIM_STEP = 16;

int check_params(const kvp_pager * pager, const kvp_batch_desc & batch, const kvp_params & p) {
    if (p.layer >= kvp_pager_layers(pager)) {
        return kvp_set_error(-EINVAL, "An attention op cannot read layer %u: the pager has %u.", p.layer, kvp_pager_layers(pager));
    }
    const kvp_layer_desc & layer = *kvp_layer_get(pager, p.layer);
    if (layer.group != batch.group) {
        return kvp_set_error(-EINVAL, "An attention op of a batch of group %u cannot read layer %u, which is in group %u.",
                      batch.group, p.layer, layer.group);
    }
    const int unsupported = kvp_supported(&layer, p.heads);
    if (unsupported != 0) {
        return unsupported;
    }
    if (!std::isfinite(p.scale) || !std::isfinite(p.softcap) || !std::isfinite(p.max_bias) || p.softcap < 0 || p.max_bias < 0) {
        return kvp_set_error(-EINVAL, "An attention op on layer %u has scale %g, softcap %g and ALiBi bias %g: they must be finite, the last two not negative.",
                      p.layer, (double) p.scale, (double) p.softcap, (double) p.max_bias);
    }
    return 0;
}

} // namespace

int kvp_supported(const kvp_layer_desc * layer, uint32_t heads) {
    if (layer->kv_heads == 0 || heads == 0 || heads % layer->kv_heads != 0) {
        return kvp_set_error(-EINVAL, "Paged attention needs a multiple of the K/V heads as query heads; the model has %u and %u.",
                      layer->kv_heads, heads);
    }
    if (layer->dk == 0 || layer->dv == 0 || layer->dk % HEAD_DIM_STEP != 0 || layer->dv % HEAD_DIM_STEP != 0) {
        return kvp_set_error(-EINVAL, "Paged attention computes heads of a multiple of %u elements; the model's have %u for K and %u for V.",
                      HEAD_DIM_STEP, layer->dk, layer->dv);
    }
    if (!kvp_type_valid(layer->type_k) || !kvp_type_valid(layer->type_v)) {
        return kvp_set_error(-EINVAL, "Paged attention computes K and V of f16, q8_0 and q4_0; the model's are of ggml types %d and %d.",
                      layer->type_k, layer->type_v);
    }
    return 0;
}

int kvp_op_new(kvp_batch * batch, const kvp_params * params, kvp_op ** out) {
    if (!batch || !params || !out) {
        return kvp_set_error(-EINVAL, "An attention op needs a batch, its parameters and a place for the result.");
    }
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(batch->pager));
    if (!batch->data) {
        return kvp_set_error(-ESTALE, "An attention op cannot be made for a batch that %u later ones of its group have replaced.", KVP_BATCHES);
    }
    const int err = check_params(batch->pager, batch->data->desc, *params);
    if (err != 0) {
        return err;
    }
    auto op = std::make_unique<kvp_op>();
    op->iface  = kvp_interface();
    op->batch  = batch;
    op->params = *params;
    op->layer  = *kvp_layer_get(batch->pager, params->layer);
    op->n_q    = batch->data->desc.n_q;
    *out = op.get();
    batch->ops.push_back(std::move(op));
    return 0;
}

const kvp_params * kvp_op_params(const kvp_op * op) {
    return &op->params;
}

kvp_batch * kvp_op_batch(const kvp_op * op) {
    return op->batch;
}

kvp_pager * kvp_op_pager(const kvp_op * op) {
    return op->batch->pager;
}

const kvp_iface * kvp_interface(void) {
    static const kvp_iface iface = {
        KVP_IFACE_VERSION, sizeof(kvp_iface),
        kvp_cpu_work_bytes, kvp_cpu_forward,
        kvp_op_params, kvp_op_batch, kvp_op_pager,
        kvp_batch_get, kvp_batch_list, kvp_batch_pages, kvp_batch_page, kvp_batch_class,
        kvp_layer_get, kvp_page_cells, kvp_layer_row_k, kvp_layer_row_v, kvp_layer_v_offset, kvp_layer_page_bytes,
        kvp_resident, kvp_pin, kvp_unpin, kvp_prefetch, kvp_rows_write, kvp_fail,
        kvp_cpu_page, kvp_page_version, kvp_op_chooses,
    };
    return &iface;
}
