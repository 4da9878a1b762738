// A captured graph is a copy of all that a computation reads of a graph, so that the host may
// change or free the graph at once, as it may after kernels were launched.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "ggml-impl.h"

namespace fakegpu {

class CapturedGraph {
public:
    explicit CapturedGraph(const ggml_cgraph * graph);
    CapturedGraph(const CapturedGraph &) = delete;

    ggml_cgraph * graph() { return &graph_; }

private:
    ggml_tensor * copy(const ggml_tensor * tensor);

    std::deque<ggml_tensor>                                tensors_;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies_;
    std::vector<ggml_tensor *>                             nodes_;
    ggml_cgraph                                            graph_{};
};

// scratch_bytes estimates the memory that CUDA's kernels want for a graph beyond its tensors.
size_t scratch_bytes(const ggml_cgraph * graph);

}  // namespace fakegpu
