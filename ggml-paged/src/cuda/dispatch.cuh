// From sizes known at run time to the instantiation of a kernel.
#pragma once

#include "cuda/attend_decode.cuh"
#include "cuda/attend_prefill_mma.cuh"
#include "cuda/split.h"

namespace KVP_KERNELS {

// with_kernel_of calls launch(kernel, threads) with the kernel for a split, and for code with
// tensor cores or without.
template <uint32_t DK, uint32_t DV, class LAUNCH>
void with_kernel_of(const attend_split & split, bool mma, LAUNCH && launch) {
    switch (split.decode_rows) {
    case 0:  return launch(mma ? attend_prefill_mma<DK, DV> : attend_prefill<DK, DV>, prefill_block);
    case 1:  return launch(attend_decode<DK, DV, 1>, decode_block);
    case 4:  return launch(attend_decode<DK, DV, 4>, decode_block);
    case 8:  return launch(attend_decode<DK, DV, 8>, decode_block);
    default: return launch(attend_decode<DK, DV, 16>, decode_block);
    }
}

// with_attend_kernel does as with_kernel_of for any head size; false without a kernel for
// it.
template <class LAUNCH>
bool with_attend_kernel(uint32_t dk, uint32_t dv, const attend_split & split, bool mma, LAUNCH && launch) {
#define KVP_CASE(K, V)                            \
    if (dk == K && dv == V) {                     \
        with_kernel_of<K, V>(split, mma, launch); \
        return true;                              \
    }
    KVP_FOR_EACH_HEAD_DIM(KVP_CASE)
#undef KVP_CASE
    return false;
}

} // namespace KVP_KERNELS
