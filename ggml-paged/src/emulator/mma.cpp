#include "emulator/mma.h"

#define KVP_EMULATED 1
#include "cuda/portable.cuh"

namespace emulator {

namespace {

float half_of(const uint32_t * pairs, uint32_t i) {
    return kvp_emulated::half_to_float(uint16_t(pairs[i / 2] >> i % 2 * 16));
}

} // namespace

// Rows and columns as in "Matrix Fragments for mma.m16n8k16" of the PTX ISA.
void multiply(const mma_operands (&lanes)[32], float (&d)[32][4]) {
    float a[16][16], b[16][8];
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t group = lane / 4, in_group = lane % 4;
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
            a[row][2 * in_group + i % 2 + (i < 4 ? 0 : 8)] = half_of(lanes[lane].a, i);
        }
        for (uint32_t i = 0; i < 4; ++i) {
            b[2 * in_group + i % 2 + (i < 2 ? 0 : 8)][group] = half_of(lanes[lane].b, i);
        }
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t row = i < 2 ? lane / 4 : lane / 4 + 8, column = 2 * (lane % 4) + i % 2;
            float sum = lanes[lane].c[i];
            for (uint32_t k = 0; k < 16; ++k) {
                sum += a[row][k] * b[k][column];
            }
            d[lane][i] = sum;
        }
    }
}

} // namespace emulator
