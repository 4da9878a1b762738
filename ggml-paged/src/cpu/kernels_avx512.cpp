// The kernels for AVX-512.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "kv_types.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's header leaves irrelevant operands undefined, and warns of that.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

namespace kvp {
namespace {

#include "cpu/simd_avx512.inc"
#include "cpu/kernels.inc"

const cpu_kernels table = {"avx512", attend_decode, attend_prefill, to_floats, merge};

} // namespace
} // namespace kvp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const kvp::cpu_kernels * kvp::kernels_avx512() {
    return &table;
}

#else

const kvp::cpu_kernels * kvp::kernels_avx512() {
    return nullptr;
}

#endif
