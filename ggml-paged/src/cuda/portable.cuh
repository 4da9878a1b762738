// The subset of CUDA in which the kernels are written, for three compilers: a CUDA
// compiler with the toolkit's headers, clang in CUDA mode without headers
// (scripts/check-cuda), and a C++ compiler with the emulator. No other part of the kernels
// depends on the compiler.
#pragma once

#include "cuda/kernel_args.h"

#if defined(KVP_EMULATED)

#include <cmath>
#include <cstring>

#include "emulator/block.h"

#define KVP_KERNELS kvp_emulated
#define KVP_DEVICE static inline
#define KVP_GLOBAL_OF(threads, blocks) static
#define KVP_SHARED(type, name) type & name = *static_cast<type *>(emulator::shared_memory(sizeof(type)))
#define KVP_BARRIER() emulator::barrier(__FILE__, __LINE__)
#define KVP_BARRIER_OR(x) emulator::barrier_or(x, __FILE__, __LINE__)
#define KVP_UNROLL
#define KVP_UNROLL_4
#define KVP_NO_UNROLL
#define KVP_HAS_MMA 1
// Each includer uses only some of these functions.
#pragma GCC diagnostic ignored "-Wunused-function"

#else

#if defined(KVP_BARE_CUDA)
#include "cuda/bare.cuh"
#endif

#define KVP_KERNELS kvp_kernels
#define KVP_DEVICE static __device__ __forceinline__
#define KVP_GLOBAL_OF(threads, blocks) static __global__ __launch_bounds__(threads, blocks)
#define KVP_SHARED(type, name) __shared__ type name
#define KVP_BARRIER() __syncthreads()
#define KVP_BARRIER_OR(x) (__syncthreads_or(x) != 0)
#define KVP_UNROLL _Pragma("unroll")
#define KVP_UNROLL_4 _Pragma("unroll 4")
#define KVP_NO_UNROLL _Pragma("unroll 1")
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 10 * KVP_MMA_CAPABILITY
#define KVP_HAS_MMA 0
#else
#define KVP_HAS_MMA 1
#endif

#endif

// A kernel; with OF, one whose registers leave room for that many blocks at a time.
#define KVP_GLOBAL(threads) KVP_GLOBAL_OF(threads, 2)

namespace KVP_KERNELS {

using namespace kvp_gpu;

// Floats that move as one.
struct alignas(16) float4_t {
    float x, y, z, w;
};

template <uint32_t N>
struct alignas(4 * N) floats {
    float x[N];
};

// pack makes a register of two halves.
KVP_DEVICE uint32_t pack(uint16_t low, uint16_t high) { return (uint32_t) low | (uint32_t) high << 16; }

// mma_f16 adds a product of halves to floats, for all 32 lanes of a warp at once, each
// called with its registers:
//
//     c[0..3]  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)          of 16 x 8 floats
//     a[0..3]  (g, 2t..), (g+8, 2t..), (g, 2t+8..), (g+8, 2t+8..)  of 16 x 16 halves
//     b[0..1]  (2t.., g), (2t+8.., g)                              of 16 x 8 halves
//
// as (row, column) with g = lane / 4 and t = lane % 4. A register of a has two neighbours of
// a row, one of b two neighbours of a column, the first in the low 16 bits. From "Matrix
// Fragments for mma.m16n8k16 with floating point type" of the PTX ISA,
// docs.nvidia.com/cuda/parallel-thread-execution. Compute capability 7.5 has the halves of
// the inner index as two instructions, m16n8k8, with the first and the last registers.

#if defined(KVP_EMULATED)

KVP_DEVICE uint32_t thread_index() { return emulator::thread_index(); }
KVP_DEVICE uint32_t anew(uint32_t x) { return x; }
KVP_DEVICE uint32_t block_x() { return emulator::block_index(0); }
KVP_DEVICE uint32_t block_y() { return emulator::block_index(1); }
KVP_DEVICE uint32_t block_z() { return emulator::block_index(2); }

KVP_DEVICE float shuffle_xor(float x, int lane_mask) { return emulator::shuffle_xor(x, lane_mask); }
KVP_DEVICE void warp_barrier() { emulator::warp_barrier(); }
KVP_DEVICE void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emulator::mma_operands x = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
    emulator::mma(&x);
    std::memcpy(c, x.c, sizeof x.c);
}
KVP_DEVICE void or_shared(uint32_t * word, uint32_t bits) { __atomic_fetch_or(word, bits, __ATOMIC_RELAXED); }

KVP_DEVICE float exp2_fast(float x) { return std::exp2(x); }

// Products and sums that must round on their own, not as one fused operation.
KVP_DEVICE float mul_rounded(float a, float b) { volatile float p = a * b; return p; }
KVP_DEVICE float add_rounded(float a, float b) { volatile float s = a + b; return s; }
KVP_DEVICE float div_rounded(float a, float b) { return a / b; }

KVP_DEVICE uint32_t float_bits(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
KVP_DEVICE float bits_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

KVP_DEVICE float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 31) {
        return bits_float(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0) {
        // Subnormal: mantissa * 2^-24, which a float holds exactly.
        const float magnitude = float(mantissa) * 5.9604644775390625e-08f;
        return sign ? -magnitude : magnitude;
    }
    return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

KVP_DEVICE uint16_t float_to_half(float x) {
    const uint32_t bits = float_bits(x);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) {
        return uint16_t(sign | 0x7c00u);  // rounds to infinity
    }
    if (magnitude < 0x38800000u) {
        // Below the least normal half: adding 0.5 aligns the last bit at 2^-24, and rounds.
        const uint32_t shifted = float_bits(bits_float(magnitude) + 0.5f);
        return uint16_t(sign | (shifted - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

#else

KVP_DEVICE uint32_t thread_index() { return threadIdx.x; }
// anew returns x, of which a compiler then knows nothing: what is made of it is not kept in
// registers from one step of a loop to the next.
KVP_DEVICE uint32_t anew(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
KVP_DEVICE uint32_t block_x() { return blockIdx.x; }
KVP_DEVICE uint32_t block_y() { return blockIdx.y; }
KVP_DEVICE uint32_t block_z() { return blockIdx.z; }

KVP_DEVICE float shuffle_xor(float x, int lane_mask) { return __shfl_xor_sync(0xffffffffu, x, lane_mask, 32); }
KVP_DEVICE void warp_barrier() { __syncwarp(); }
#if KVP_HAS_MMA
KVP_DEVICE void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    KVP_UNROLL
    for (int half = 0; half < 2; ++half) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
}
#else
KVP_DEVICE void stop() { asm volatile("trap;"); }
#endif
KVP_DEVICE void or_shared(uint32_t * word, uint32_t bits) { atomicOr(word, bits); }

KVP_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Products and sums that must round on their own, not as one fused operation.
KVP_DEVICE float mul_rounded(float a, float b) {
    float p;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(p) : "f"(a), "f"(b));
    return p;
}

KVP_DEVICE float add_rounded(float a, float b) {
    float s;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(s) : "f"(a), "f"(b));
    return s;
}

KVP_DEVICE float div_rounded(float a, float b) {
    float p;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(p) : "f"(a), "f"(b));
    return p;
}

KVP_DEVICE uint32_t float_bits(float x) { return (uint32_t) __float_as_int(x); }
KVP_DEVICE float bits_float(uint32_t u) { return __int_as_float((int) u); }

KVP_DEVICE float half_to_float(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

KVP_DEVICE uint16_t float_to_half(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

#endif

constexpr uint32_t bits_infinity = 0x7f800000u;

KVP_DEVICE float minus_infinity() { return bits_float(0xff800000u); }
KVP_DEVICE bool  halves_are_finite(uint32_t pair) { return (pair & 0x7c00u) != 0x7c00u && (pair & 0x7c000000u) != 0x7c000000u; }
KVP_DEVICE bool  is_finite(float x) { return (float_bits(x) & bits_infinity) != bits_infinity; }
KVP_DEVICE float larger(float a, float b) { return a > b ? a : b; }

// exp for the weights of a softmax: e^x = 2^(x log2 e).
KVP_DEVICE float exp_weight(float x) { return exp2_fast(x * 1.4426950408889634f); }

// weight is exp(s - m), and 0 where s is minus infinity, for every m.
KVP_DEVICE float weight(float s, float m) { return s == minus_infinity() ? 0.0f : exp_weight(s - m); }

// tanh. Near zero the exponential loses digits, and the series keeps them.
KVP_DEVICE float tanh_smooth(float x) {
    const float a = x < 0 ? -x : x;
    if (a < 0.25f) {
        const float y = x * x;
        return x * (1.0f + y * (-0.333333333f + y * (0.133333333f + y * (-0.0539682540f + y * 0.0218694885f))));
    }
    const float t = 1.0f - 2.0f / (exp_weight(2.0f * a) + 1.0f);
    return x < 0 ? -t : t;
}

} // namespace KVP_KERNELS
