#include "support.h"

#include "buffer.h"
#include "cpu.h"

namespace fakegpu {

// Other devices' memory is out of reach.
static bool sources_are_reachable(ggml_backend_dev_t device, const ggml_tensor * op) {
    for (const ggml_tensor * source : op->src) {
        if (source != nullptr && source->buffer != nullptr && is_device_type(source->buffer->buft) &&
            source->buffer->buft->device != device) {
            return false;
        }
    }
    return true;
}

// The types of rows that CUDA gathers.
static bool gathers(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16:
        case GGML_TYPE_F32:
        case GGML_TYPE_BF16:
        case GGML_TYPE_I32:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q8_0:
            return true;
        default:
            return false;
    }
}

// Functions of the host and its pages are no work for a card; some operations have no kernel.
static bool has_kernel(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MAP_CUSTOM1:
        case GGML_OP_MAP_CUSTOM2:
        case GGML_OP_MAP_CUSTOM3:
        case GGML_OP_CUSTOM:
        case GGML_OP_FLASH_ATTN_EXT_PAGED:
        case GGML_OP_FLASH_ATTN_BACK:
        case GGML_OP_WIN_PART:
        case GGML_OP_WIN_UNPART:
        case GGML_OP_GET_REL_POS:
        case GGML_OP_ADD_REL_POS:
            return false;
        case GGML_OP_GET_ROWS:
            return gathers(op->src[0]->type);
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return op->src[1]->type != GGML_TYPE_F16 || op->src[0]->type == GGML_TYPE_F16;
        default:
            return true;
    }
}

// The CPU is asked about tensors in ordinary memory.
static bool cpu_supports(const ggml_tensor * op) {
    ggml_tensor plain = *op;
    ggml_tensor sources[GGML_MAX_SRC];
    plain.buffer = nullptr;
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (op->src[i] != nullptr) {
            sources[i]        = *op->src[i];
            sources[i].buffer = nullptr;
            plain.src[i]      = &sources[i];
        }
    }
    return cpu_device()->iface.supports_op(cpu_device(), &plain);
}

bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    return sources_are_reachable(device, op) && has_kernel(op) && cpu_supports(op);
}

}  // namespace fakegpu
