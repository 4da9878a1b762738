// The kernels for any machine.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "kv_types.h"

namespace kvp {
namespace {

#include "cpu/simd_generic.inc"
#include "cpu/kernels.inc"

const cpu_kernels table = {"generic", attend_decode, attend_prefill, to_floats, merge};

} // namespace
} // namespace kvp

const kvp::cpu_kernels * kvp::kernels_generic() {
    return &table;
}
