// The kernels for AVX2.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "kv_types.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace kvp {
namespace {

#include "cpu/simd_avx2.inc"
#include "cpu/kernels.inc"

const cpu_kernels table = {"avx2", attend_decode, attend_prefill, to_floats, merge};

} // namespace
} // namespace kvp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const kvp::cpu_kernels * kvp::kernels_avx2() {
    return &table;
}

#else

const kvp::cpu_kernels * kvp::kernels_avx2() {
    return nullptr;
}

#endif
