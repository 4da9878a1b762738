// Rows of K and V as floats. Eight elements at a time: the largest load of f16, and a
// quarter of a block of the quantized types, whose bytes are only aligned to 2. The type
// is the same for all threads of a launch, so the branches cost little, and one kernel
// serves nine pairs of types.
#pragma once

#include "cuda/portable.cuh"

namespace KVP_KERNELS {

constexpr uint32_t type_f16  = 1;
constexpr uint32_t type_q4_0 = 2;
constexpr uint32_t type_q8_0 = 8;

struct alignas(16) halves8 {
    uint32_t pair[4];
};

KVP_DEVICE void load_f16(const uint8_t * row, uint32_t element, float * x) {
    const halves8 h = *(const halves8 *) (row + 2 * element);
    KVP_UNROLL
    for (int i = 0; i < 4; ++i) {
        x[2 * i]     = half_to_float((uint16_t) (h.pair[i] & 0xffffu));
        x[2 * i + 1] = half_to_float((uint16_t) (h.pair[i] >> 16));
    }
}

// Integers of a block, and the scale that they are multiplied by.
KVP_DEVICE float units_q8_0(const uint8_t * row, uint32_t element, float * x) {
    const uint16_t * block = (const uint16_t *) (row + 34 * (element / 32));
    const uint16_t * q = block + 1 + (element % 32) / 2;
    KVP_UNROLL
    for (int i = 0; i < 4; ++i) {
        const uint32_t two = q[i];
        x[2 * i]     = (float) (int8_t) (two & 0xffu);
        x[2 * i + 1] = (float) (int8_t) (two >> 8);
    }
    return half_to_float(block[0]);
}

KVP_DEVICE float units_q4_0(const uint8_t * row, uint32_t element, float * x) {
    const uint16_t * block = (const uint16_t *) (row + 18 * (element / 32));
    const uint32_t shift = (element % 32) < 16 ? 0 : 4;
    const uint16_t * q = block + 1 + (element % 16) / 2;
    KVP_UNROLL
    for (int i = 0; i < 4; ++i) {
        const uint32_t two = (uint32_t) q[i] >> shift;
        x[2 * i]     = (float) ((int) (two & 0xfu) - 8);
        x[2 * i + 1] = (float) ((int) ((two >> 8) & 0xfu) - 8);
    }
    return half_to_float(block[0]);
}

// load8 reads elements element .. element+7 of a row; element is a multiple of 8.
KVP_DEVICE void load8(uint32_t type, const uint8_t * row, uint32_t element, float * x) {
    if (type == type_f16) {
        load_f16(row, element, x);
        return;
    }
    const float d = type == type_q8_0 ? units_q8_0(row, element, x) : units_q4_0(row, element, x);
    KVP_UNROLL
    for (int i = 0; i < 8; ++i) {
        x[i] *= d;
    }
}

KVP_DEVICE halves8 to_halves(const float * x) {
    halves8 h;
    KVP_UNROLL
    for (int i = 0; i < 4; ++i) {
        h.pair[i] = pack(float_to_half(x[2 * i]), float_to_half(x[2 * i + 1]));
    }
    return h;
}

// load8_halves rounds to halves what is not stored as such.
KVP_DEVICE halves8 load8_halves(uint32_t type, const uint8_t * row, uint32_t element) {
    if (type == type_f16) {
        return *(const halves8 *) (row + 2 * element);
    }
    float x[8];
    load8(type, row, element, x);
    return to_halves(x);
}

// units8_halves rounds nothing: the elements are what x gets times what it returns.
KVP_DEVICE float units8_halves(uint32_t type, const uint8_t * row, uint32_t element, halves8 & x) {
    if (type == type_f16) {
        x = *(const halves8 *) (row + 2 * element);
        return 1.0f;
    }
    float units[8];
    const float d = type == type_q8_0 ? units_q8_0(row, element, units) : units_q4_0(row, element, units);
    x = to_halves(units);
    return d;
}

} // namespace KVP_KERNELS
