// Layers whose K and V a pager holds in page-locked memory, ops over these layers with their
// tensors on the device, and the context that computes the ops.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "paged_attn_cuda.h"

struct layer_shape {
    uint32_t tokens, n_q;
    uint32_t heads = 40, kv_heads = 8, dim = 128;
    int      type = KVP_F16;
    uint32_t page_cells = 2048;

    double kv_bytes() const { return 2.0 * tokens * kv_heads * kvp_row_bytes(type, dim); }  // of a layer
};

// Device memory that is freed in the reverse order, kept by depth.
class device_pool {
public:
    ~device_pool();
    kvp_cuda_pool iface();

private:
    static void * alloc(void * user, size_t bytes);
    static void   free(void * user, void * memory);
    struct block {
        void * memory;
        size_t bytes;
    };
    std::vector<block> blocks_;
    size_t             depth_ = 0;
};

// Functions throw std::runtime_error with the name of the failed call.
class cuda_context {
public:
    // keep: pages stay on the device once they were there.
    explicit cuda_context(uint32_t workers = 0, bool keep = false);
    ~cuda_context();
    cuda_context(const cuda_context &) = delete;
    cuda_context & operator=(const cuda_context &) = delete;

    kvp_cuda *    cuda = nullptr;
    void *        stream = nullptr;
    kvp_cuda_pool pool() { return pool_.iface(); }

private:
    device_pool pool_;
};

class layer_rig {
public:
    explicit layer_rig(const layer_shape & s);
    ~layer_rig();
    layer_rig(const layer_rig &) = delete;
    layer_rig & operator=(const layer_rig &) = delete;

    // forward computes each layer's op once, in their order, and returns how long a layer
    // took, in seconds.
    double forward(cuda_context & cuda);
    std::vector<float> result() const;  // of the last layer

    kvp_pager *       pager() const { return pager_; }
    kvp_op *          op(uint32_t layer) const { return ops_[layer]; }
    uint32_t          layers() const { return uint32_t(ops_.size()); }
    double            working_set() const { return layers() * shape_.kv_bytes(); }  // bytes
    uint64_t          l2_bytes() const { return l2_bytes_; }
    uint32_t          pages() const { return (shape_.tokens + shape_.page_cells - 1) / shape_.page_cells; }
    const kvp_io &    host_io() const { return host_; }
    const layer_shape & shape() const { return shape_; }

private:
    void   fill_pages(uint32_t layer);
    void   make_ops(uint32_t layers);
    void   make_tensors();
    void * on_device(const void * host, size_t bytes);

    const layer_shape    shape_;
    kvp_pager *          pager_ = nullptr;
    std::vector<kvp_op *> ops_;
    uint64_t             l2_bytes_ = 0;
    kvp_io               host_ = {}, device_ = {};
    std::vector<float>   q_, k_new_, v_new_;
    std::vector<void *>  device_memory_;
};
