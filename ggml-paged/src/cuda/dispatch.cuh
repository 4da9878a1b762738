// From sizes known at run time to the instantiation of a kernel.
#pragma once

#include "cuda/kernels.cuh"
#include "cuda/split.h"

namespace KVP_KERNELS {

// with_attend_kernel calls launch(kernel, threads) with the kernel for a split; false where
// there is none.
template <class LAUNCH>
bool with_attend_kernel(uint32_t dk, uint32_t dv, const attend_split & split, LAUNCH && launch) {
#define KVP_CASE(K, V)                                                               \
    if (dk == K && dv == V) {                                                        \
        switch (split.decode_rows) {                                                 \
        case 0:  launch(attend_prefill<K, V>, prefill_block); return true;           \
        case 1:  launch(attend_decode<K, V, 1>, decode_block); return true;          \
        case 4:  launch(attend_decode<K, V, 4>, decode_block); return true;          \
        case 8:  launch(attend_decode<K, V, 8>, decode_block); return true;          \
        default: launch(attend_decode<K, V, 16>, decode_block); return true;         \
        }                                                                            \
    }
    KVP_FOR_EACH_HEAD_DIM(KVP_CASE)
#undef KVP_CASE
    return false;
}

} // namespace KVP_KERNELS
