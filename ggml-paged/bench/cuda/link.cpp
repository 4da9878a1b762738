#include "link.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int ROUNDS = 8;
constexpr size_t ROUND_BYTES = size_t(128) << 20;

double best_of_rounds(void * device, const void * host, size_t bytes, cudaStream_t stream) {
    const size_t copies = std::max<size_t>(1, ROUND_BYTES / bytes);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const auto begin = std::chrono::steady_clock::now();
        for (size_t i = 0; i < copies; i++) {
            if (cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream) != cudaSuccess) {
                return 0;
            }
        }
        if (cudaStreamSynchronize(stream) != cudaSuccess) {
            return 0;
        }
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        best = std::max(best, double(copies * bytes) / seconds);
    }
    return best;
}

} // namespace

double copy_rate(host_memory kind, size_t bytes) {
    void * host = nullptr;
    void * device = nullptr;
    cudaStream_t stream = nullptr;
    if (kind == host_memory::pageable) {
        host = std::malloc(bytes);
    } else if (cudaHostAlloc(&host, bytes, cudaHostAllocPortable) != cudaSuccess) {
        host = nullptr;
    }
    double rate = 0;
    if (host && cudaMalloc(&device, bytes) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess) {
        std::memset(host, 1, bytes);
        rate = best_of_rounds(device, host, bytes, stream);
    }
    if (stream) {
        cudaStreamDestroy(stream);
    }
    cudaFree(device);
    if (kind == host_memory::pageable) {
        std::free(host);
    } else {
        cudaFreeHost(host);
    }
    return rate;
}
