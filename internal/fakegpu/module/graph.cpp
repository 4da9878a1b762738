#include "graph.h"

#include <algorithm>

namespace fakegpu {

// A copy has no buffer: the CPU backend takes its data as plain memory. It has no sources
// until the tensor is seen as a node.
ggml_tensor * CapturedGraph::copy(const ggml_tensor * tensor) {
    if (tensor == nullptr) {
        return nullptr;
    }
    ggml_tensor *& made = copies_[tensor];
    if (made != nullptr) {
        return made;
    }
    made           = &tensors_.emplace_back(*tensor);
    made->buffer   = nullptr;
    made->extra    = nullptr;
    std::fill(std::begin(made->src), std::end(made->src), nullptr);
    ggml_tensor * const result = made;
    result->view_src           = copy(tensor->view_src); // may move the place that `made` names
    return result;
}

// CUDA's copy of a transpose of dense rows takes its destination for dense, although it may be a view
// with other strides. See can_be_transposed in ggml-cuda/cpy.cu.
static void copy_as_cuda(ggml_tensor * node) {
    const ggml_tensor * from = node->src[0];
    if (node->op != GGML_OP_CPY || from->type != node->type || ggml_is_quantized(from->type) || from->type == GGML_TYPE_I32 ||
        (ggml_is_contiguous(from) && ggml_is_contiguous(node))) {
        return;
    }
    const size_t element = ggml_element_size(from);
    if (from->nb[1] == element && from->ne[3] == 1 && from->nb[2] == from->ne[0] * from->ne[1] * element) {
        for (int i = 1; i < GGML_MAX_DIMS; i++) {
            node->nb[i] = node->nb[i - 1] * node->ne[i - 1];
        }
    }
}

CapturedGraph::CapturedGraph(const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        ggml_tensor *       made = copy(node);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            made->src[s] = copy(node->src[s]);
        }
        copy_as_cuda(made);
        nodes_.push_back(made);
    }
    graph_.size    = graph->n_nodes;
    graph_.n_nodes = graph->n_nodes;
    graph_.nodes   = nodes_.data();
    graph_.order   = graph->order;
}

static size_t scratch_of(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return ggml_nbytes(node->src[1]);
        case GGML_OP_FLASH_ATTN_EXT:
            return ggml_nbytes(node);
        default:
            return 0;
    }
}

// CUDA's pool grows by granules of 2 MiB.
size_t scratch_bytes(const ggml_cgraph * graph) {
    size_t most = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        most = std::max(most, scratch_of(graph->nodes[i]));
    }
    return GGML_PAD(most, size_t(2) << 20);
}

}  // namespace fakegpu
