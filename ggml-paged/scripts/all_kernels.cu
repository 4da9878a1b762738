// Every instantiation of every kernel, for scripts/check-cuda.
#include "cuda/kernels.cuh"

#define KVP_INSTANTIATIONS(K, V)                                          \
    attend_decode<K, V, 1>, attend_decode<K, V, 4>, attend_decode<K, V, 8>, \
    attend_decode<K, V, 16>, attend_prefill<K, V>, attend_prefill_mma<K, V>,

namespace kvp_kernels {

__attribute__((used)) static void (*const attend_kernels[])(attend_args) = {KVP_FOR_EACH_HEAD_DIM(KVP_INSTANTIATIONS)};
__attribute__((used)) static void (*const merge_kernels[])(merge_args) = {merge, clear};
__attribute__((used)) static void (*const finish_kernels[])(finish_args) = {finish};
__attribute__((used)) static void (*const quantize_kernels[])(quantize_args) = {quantize};
__attribute__((used)) static void (*const patch_kernels[])(patch_args) = {patch};

} // namespace kvp_kernels
