// Launches of the attention kernels, one translation unit for each head size
// (attend_d*.cu): kernels take long to compile, and so their units are compiled in
// parallel.
#pragma once

#include <cuda_runtime.h>

#include "cuda/gpu.h"

namespace kvp_gpu {

template <uint32_t DK, uint32_t DV>
void launch_attend(const attend_split & split, bool mma, grid_size grid, cudaStream_t stream, const attend_args & a);

} // namespace kvp_gpu
