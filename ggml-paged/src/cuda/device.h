// The GPU of cuda/gpu.h on a CUDA device.
#pragma once

#include <memory>

#include "cuda/gpu.h"
#include "paged_attn_cuda.h"

namespace kvp_gpu {

class cuda_gpu_base : public gpu {
public:
    // use sets the engine's stream (a cudaStream_t) and pool for later calls. By default,
    // the device has its own stream and pool.
    virtual void use(void * stream, const kvp_cuda_pool & pool) = 0;

    // mma says that the code for this device has tensor cores, and prefill runs on them.
    virtual bool mma() const = 0;
};

// make_cuda_gpu returns NULL, with a sentence in message, if the device cannot be used.
std::unique_ptr<cuda_gpu_base> make_cuda_gpu(int device, char * message, size_t message_bytes);

} // namespace kvp_gpu
