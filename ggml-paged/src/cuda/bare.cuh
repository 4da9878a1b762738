// The small part of CUDA's headers that the kernels use, for clang without CUDA headers:
// scripts/check-cuda compiles the kernels this way.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

// threadIdx and blockIdx have members that are read from special registers.
struct bare_thread_index {
    __declspec(property(get = get_x)) unsigned x;
    __device__ unsigned get_x() const { return __nvvm_read_ptx_sreg_tid_x(); }
};

struct bare_block_index {
    __declspec(property(get = get_x)) unsigned x;
    __declspec(property(get = get_y)) unsigned y;
    __declspec(property(get = get_z)) unsigned z;
    __device__ unsigned get_x() const { return __nvvm_read_ptx_sreg_ctaid_x(); }
    __device__ unsigned get_y() const { return __nvvm_read_ptx_sreg_ctaid_y(); }
    __device__ unsigned get_z() const { return __nvvm_read_ptx_sreg_ctaid_z(); }
};

extern const __device__ __attribute__((weak)) bare_thread_index threadIdx;
extern const __device__ __attribute__((weak)) bare_block_index blockIdx;

static __device__ __forceinline__ float __shfl_xor_sync(unsigned mask, float x, int lane_mask, int) {
    return __nvvm_shfl_sync_bfly_f32(mask, x, lane_mask, 0x1f);
}

static __device__ __forceinline__ int __syncthreads_or(int x) { return __nvvm_bar0_or(x); }
static __device__ __forceinline__ void __syncwarp() { __nvvm_bar_warp_sync(0xffffffffu); }

static __device__ __forceinline__ void atomicOr(unsigned * word, unsigned bits) {
    __nvvm_atom_or_gen_i((int *) word, (int) bits);
}

static __device__ __forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
static __device__ __forceinline__ float __int_as_float(int u) { return __builtin_bit_cast(float, u); }
