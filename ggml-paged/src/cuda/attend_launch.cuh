// The parts of the translation unit of a head size.
#pragma once

#include "cuda/attend_launch.h"
#include "cuda/dispatch.cuh"

namespace kvp_gpu {

template <uint32_t DK, uint32_t DV>
void launch_attend(const attend_split & split, bool mma, grid_size grid, cudaStream_t stream, const attend_args & a) {
    kvp_kernels::with_kernel_of<DK, DV>(split, mma, [&](void (*kernel)(attend_args), uint32_t threads) {
        kernel<<<dim3(grid.x, grid.y, grid.z), threads, 0, stream>>>(a);
    });
}

} // namespace kvp_gpu

#define KVP_ATTEND_KERNELS(K, V) \
    template void kvp_gpu::launch_attend<K, V>(const attend_split &, bool, grid_size, cudaStream_t, const attend_args &);
