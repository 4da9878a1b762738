// A layer whose K and V a pager holds in page-locked memory, an op over it with its tensors
// on the device, and what computes it.
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

    double kv_bytes() const { return 2.0 * tokens * kv_heads * kvp_row_bytes(type, dim); }
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

// Functions throw std::runtime_error with what failed.
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

    // forward computes the op once and returns how long it took, in seconds.
    double forward(cuda_context & cuda);
    std::vector<float> result() const;

    kvp_pager *       pager() const { return pager_; }
    kvp_op *          op() const { return op_; }
    uint32_t          pages() const { return (shape_.tokens + shape_.page_cells - 1) / shape_.page_cells; }
    const kvp_io &    host_io() const { return host_; }
    const layer_shape & shape() const { return shape_; }

private:
    void   fill_pages();
    void   make_op();
    void   make_tensors();
    void * on_device(const void * host, size_t bytes);

    const layer_shape    shape_;
    kvp_pager *          pager_ = nullptr;
    kvp_op *             op_ = nullptr;
    kvp_io               host_ = {}, device_ = {};
    std::vector<float>   q_, k_new_, v_new_;
    std::vector<void *>  device_memory_;
};
