// IEEE half precision in plain integer code, for machines and builds without conversion
// instructions. Rounds to nearest, ties to even, as the instructions do.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvp {

inline uint32_t float_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, sizeof u);
    return u;
}

inline float float_of_bits(uint32_t u) {
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}

inline uint16_t half_of_float(float f) {
    uint32_t x = float_bits(f);
    const uint16_t sign = uint16_t(x >> 16 & 0x8000u);
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) {
        return uint16_t(sign | 0x7e00u | (x >> 13 & 0x3ffu));  // NaN stays NaN, made quiet
    }
    if (x >= 0x477ff000u) {
        return uint16_t(sign | 0x7c00u);  // 65520 and more round to infinity
    }
    if (x < 0x38800000u) {
        // Below 2^-14 the half is subnormal, in steps of 2^-24. Floats from 0.5 on have
        // the same step, so that adding 0.5 rounds correctly.
        return uint16_t(sign | (float_bits(float_of_bits(x) + 0.5f) - 0x3f000000u));
    }
    x += 0xc8000fffu + (x >> 13 & 1u);  // exponent bias 127 to 15, and half a unit less one
    return uint16_t(sign | x >> 13);
}

inline float float_of_half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t rest = h & 0x7fffu;
    if (rest >= 0x7c00u) {
        return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    if (rest < 0x0400u) {
        const float f = float(rest) * (1.0f / 16777216.0f);
        return float_of_bits(sign | float_bits(f));
    }
    return float_of_bits(sign | ((rest << 13) + 0x38000000u));
}

}  // namespace kvp
