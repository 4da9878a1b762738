// The kernels for NEON.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "kv_types.h"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>

namespace kvp {
namespace {

#include "cpu/simd_neon.inc"
#include "cpu/kernels.inc"

const cpu_kernels table = {"neon", attend_decode, attend_prefill, to_floats, merge};

} // namespace
} // namespace kvp

const kvp::cpu_kernels * kvp::kernels_neon() {
    return &table;
}

#else

const kvp::cpu_kernels * kvp::kernels_neon() {
    return nullptr;
}

#endif
