// mma_f16 under the emulator, against a plain product.
#include <gtest/gtest.h>

#include <random>

#define KVP_EMULATED 1
#include "cuda/portable.cuh"

namespace {

constexpr emulator::grid one_warp = {1, 1, 1, 32};

// An element of a matrix, and the lane, the register and its half that have it: corners of
// the figures under "Matrix Fragments for mma.m16n8k16" of the PTX ISA, and a few between.
struct placed {
    uint32_t row, column, lane, reg, half;
};
const placed places_a[] = {{0, 0, 0, 0, 0},   {0, 1, 0, 0, 1},   {0, 7, 3, 0, 1},    {7, 0, 28, 0, 0},  {8, 0, 0, 1, 0},   {15, 7, 31, 1, 1},
                           {0, 8, 0, 2, 0},   {7, 15, 31, 2, 1}, {8, 8, 0, 3, 0},    {15, 15, 31, 3, 1}, {3, 5, 14, 0, 1}, {12, 10, 17, 3, 0}};
const placed places_b[] = {{0, 0, 0, 0, 0},  {1, 0, 0, 0, 1},  {7, 0, 3, 0, 1},    {0, 7, 28, 0, 0},
                           {8, 0, 0, 1, 0},  {15, 7, 31, 1, 1}, {10, 2, 9, 1, 0}};
const placed places_c[] = {{0, 0, 0, 0, 0}, {0, 1, 0, 1, 0}, {0, 7, 3, 1, 0}, {7, 6, 31, 0, 0}, {8, 0, 0, 2, 0}, {15, 7, 31, 3, 0}, {13, 2, 21, 2, 0}};

struct warp_registers {
    uint32_t a[32][4] = {}, b[32][2] = {};
    float    c[32][4] = {};

    void multiply() {
        EXPECT_EQ(emulator::run(one_warp, {}, [this] {
            const uint32_t lane = emulator::thread_index();
            kvp_emulated::mma_f16(c[lane], a[lane], b[lane]);
        }), "");
    }
};

uint32_t half_at(uint32_t half, float x) {
    return uint32_t(kvp_emulated::float_to_half(x)) << 16 * half;
}

// One element of a and one of b, the rest zero: only where they meet is there a sum.
TEST(mma, elements_are_where_the_figures_have_them) {
    for (const placed & a : places_a) {
        for (const placed & b : places_b) {
            warp_registers w;
            w.a[a.lane][a.reg] = half_at(a.half, 3);
            w.b[b.lane][b.reg] = half_at(b.half, 5);
            w.multiply();
            for (uint32_t i = 0; i < 32 * 4; ++i) {
                const uint32_t lane = i / 4, reg = i % 4;
                const uint32_t row = lane / 4 + (reg < 2 ? 0 : 8), column = 2 * (lane % 4) + reg % 2;
                const bool meet = a.column == b.row && row == a.row && column == b.column;
                ASSERT_EQ(w.c[lane][reg], meet ? 15 : 0) << a.row << " " << a.column << " " << b.row << " " << b.column;
            }
        }
    }
    for (const placed & c : places_c) {
        warp_registers w;
        w.a[c.row % 8 * 4][c.row / 8] = half_at(0, 1);  // (row, 0)
        w.b[c.column * 4][0] = half_at(0, 2);           // (0, column)
        w.c[c.lane][c.reg] = 7;
        w.multiply();
        EXPECT_EQ(w.c[c.lane][c.reg], 9) << c.row << " " << c.column;
    }
}

// Every register of every lane, as the formulas of the manual give rows and columns.
TEST(mma, adds_the_product) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    double a[16][16], b[16][8], c[16][8];
    warp_registers w;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t g = lane >> 2, t = lane % 4;
        for (uint32_t i = 0; i < 8; ++i) {
            const uint16_t h = kvp_emulated::float_to_half(normal(random));
            w.a[lane][i / 2] |= uint32_t(h) << 16 * (i % 2);
            a[i / 2 % 2 ? g + 8 : g][2 * t + (i & 1) + (i >= 4 ? 8 : 0)] = kvp_emulated::half_to_float(h);
        }
        for (uint32_t i = 0; i < 4; ++i) {
            const uint16_t h = kvp_emulated::float_to_half(normal(random));
            w.b[lane][i / 2] |= uint32_t(h) << 16 * (i % 2);
            b[2 * t + (i & 1) + (i >= 2 ? 8 : 0)][g] = kvp_emulated::half_to_float(h);
            w.c[lane][i] = normal(random);
            c[i < 2 ? g : g + 8][2 * t + (i & 1)] = w.c[lane][i];
        }
    }
    w.multiply();
    for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t row = i < 2 ? lane / 4 : lane / 4 + 8, column = 2 * (lane % 4) + i % 2;
            double want = c[row][column];
            for (uint32_t k = 0; k < 16; ++k) {
                want += a[row][k] * b[k][column];
            }
            EXPECT_NEAR(w.c[lane][i], want, 1e-5) << "lane " << lane << " register " << i;
        }
    }
}

// Sums are of floats, and products keep all of their bits.
TEST(mma, sums_are_not_halves) {
    warp_registers w;
    w.a[0][0] = half_at(0, 1 + 0x1p-10f) | half_at(1, 2048);  // (0, 0) and (0, 1)
    w.b[0][0] = half_at(0, 1 + 0x1p-10f) | half_at(1, 1);     // (0, 0) and (1, 0)
    w.multiply();
    EXPECT_EQ(w.c[0][0], 2048 + (1 + 0x1p-9f + 0x1p-20f));
}

} // namespace
