// Rows of q8_0 and q4_0, with the rounding of ggml's reference quantizers.
#include "types/rows.h"

#include <cmath>

#include "types/half.h"

// A product and a sum fused into one instruction round once instead of twice, and give
// other bytes than the reference.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace kvp {

// A tiny scale has an infinite inverse, and products are infinite or NaN. Converting such
// products to an integer is undefined in C++. 0, the result on x86, is right, since the
// scale is stored as 0.
static int to_int(float f) {
    return std::fabs(f) <= 128.0f ? int(f) : 0;
}

void q8_0_from_floats(const float * src, block_q8_0 * dst, uint32_t n) {
    for (uint32_t b = 0; b < n; b++, src += 32) {
        float amax = 0.0f;
        for (int i = 0; i < 32; i++) {
            amax = std::fmax(amax, std::fabs(src[i]));
        }
        const float d  = amax / 127.0f;
        const float id = d != 0.0f ? 1.0f / d : 0.0f;
        dst[b].d = half_of_float(d);
        for (int i = 0; i < 32; i++) {
            dst[b].q[i] = int8_t(to_int(std::round(src[i] * id)));
        }
    }
}

void q8_0_to_floats(const block_q8_0 * src, float * dst, uint32_t n) {
    for (uint32_t b = 0; b < n; b++, dst += 32) {
        const float d = float_of_half(src[b].d);
        for (int i = 0; i < 32; i++) {
            dst[i] = d * float(src[b].q[i]);
        }
    }
}

static uint8_t nibble(float x) {
    const int q = to_int(x + 8.5f);
    return uint8_t(q < 15 ? q : 15);
}

void q4_0_from_floats(const float * src, block_q4_0 * dst, uint32_t n) {
    for (uint32_t b = 0; b < n; b++, src += 32) {
        float amax = 0.0f, max = 0.0f;
        for (int i = 0; i < 32; i++) {
            if (amax < std::fabs(src[i])) {
                amax = std::fabs(src[i]);
                max  = src[i];
            }
        }
        const float d  = max / -8.0f;
        const float id = d != 0.0f ? 1.0f / d : 0.0f;
        dst[b].d = half_of_float(d);
        for (int i = 0; i < 16; i++) {
            dst[b].q[i] = uint8_t(nibble(src[i] * id) | nibble(src[i + 16] * id) << 4);
        }
    }
}

void q4_0_to_floats(const block_q4_0 * src, float * dst, uint32_t n) {
    for (uint32_t b = 0; b < n; b++, dst += 32) {
        const float d = float_of_half(src[b].d);
        for (int i = 0; i < 16; i++) {
            dst[i]      = d * float(int(src[b].q[i] & 15) - 8);
            dst[i + 16] = d * float(int(src[b].q[i] >> 4) - 8);
        }
    }
}

}  // namespace kvp
