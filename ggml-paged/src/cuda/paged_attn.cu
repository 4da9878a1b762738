// The C API of paged_attn_cuda.h.
#include "paged_attn_cuda.h"

#include <cuda_runtime.h>
#include <stdio.h>

#include <memory>

#include "cuda/arena_block.h"
#include "cuda/device.h"
#include "cuda/forward.h"

struct kvp_cuda {
    // The order matters: the destructor of paged returns page-locked memory to the device.
    std::unique_ptr<kvp_gpu::cuda_gpu_base> device;
    std::unique_ptr<kvp_gpu::paged_gpu>     paged;
};

kvp_cuda * kvp_cuda_create(const kvp_cuda_config * config, char * message, size_t message_bytes) {
    std::unique_ptr<kvp_cuda> cuda(new kvp_cuda);
    cuda->device = kvp_gpu::make_cuda_gpu(config->device, message, message_bytes);
    if (!cuda->device) {
        return nullptr;
    }
    cuda->paged = kvp_gpu::paged_gpu::make(*cuda->device, *config);
    if (!cuda->paged) {
        snprintf(message, message_bytes, "Paged attention on CUDA could not start its threads or make its events; raise the limit on processes.");
        return nullptr;
    }
    return cuda.release();
}

void kvp_cuda_free(kvp_cuda * cuda) {
    delete cuda;
}

const char * kvp_cuda_refuses(const kvp_layer_desc * layer, uint32_t heads) {
    return kvp_gpu::refuses(layer, heads);
}

int kvp_cuda_forward(kvp_cuda * cuda, kvp_op * op, const kvp_io * io, void * stream, const kvp_cuda_pool * pool) {
    cuda->device->use(stream, pool ? *pool : kvp_cuda_pool());
    return cuda->paged->forward(op, *io);
}

void kvp_cuda_count(const kvp_cuda * cuda, kvp_cuda_counters * out) {
    const kvp_gpu::hot_tier::counters c = cuda->paged->hot();
    *out = {c.bytes, c.copies, c.hits, c.fills, c.evictions};
}

// CUDA divides small amounts of page-locked memory, and aligns them to less than the pager needs.
void * kvp_cuda_arena_alloc(void *, size_t bytes) {
    void * raw = nullptr;
    if (cudaHostAlloc(&raw, kvp_gpu::arena_block_bytes(bytes), cudaHostAllocPortable) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return kvp_gpu::arena_block(raw);
}

void kvp_cuda_arena_free(void *, void * base, size_t) {
    cudaFreeHost(kvp_gpu::arena_block_start(base));
}
