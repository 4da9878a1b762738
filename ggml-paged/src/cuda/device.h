// The GPU of cuda/gpu.h on a CUDA device.
#pragma once

#include <memory>

#include "cuda/gpu.h"
#include "paged_attn_cuda.h"

namespace kvp_gpu {

class cuda_gpu_base : public gpu {
public:
    // use sets the engine's stream (a cudaStream_t) and pool for what follows. Without it,
    // the device has a stream and a pool of its own.
    virtual void use(void * stream, const kvp_cuda_pool & pool) = 0;
};

// make_cuda_gpu: NULL where the device cannot be used, with a sentence in message.
std::unique_ptr<cuda_gpu_base> make_cuda_gpu(int device, char * message, size_t message_bytes);

} // namespace kvp_gpu
