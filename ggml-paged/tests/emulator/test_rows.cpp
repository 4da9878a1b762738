// New rows: the kernels' bytes are those of kvp_quantize_row, and they come to the right
// cells of a page.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kv_types.h"

#define KVP_EMULATED 1
#include "cuda/kernels.cuh"

namespace {

using namespace kvp_gpu;

// Floats where rounding is hard: halves between integers after scaling, denormals, zeros,
// one huge value among small ones.
std::vector<float> hard_values(std::mt19937_64 & random, uint32_t n, uint32_t kind) {
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (uint32_t i = 0; i < n; ++i) {
        switch (kind) {
        case 0: x[i] = normal(random); break;
        case 1: x[i] = 0.0f; break;
        case 2: x[i] = normal(random) * 1e-41f; break;
        case 3: x[i] = i % 32 == 7 ? 60000.0f : normal(random); break;
        case 4: x[i] = (float(random() % 255) - 127.0f) + 0.5f; break;
        case 5: x[i] = i % 32 == 0 ? 127.0f : float(int(random() % 253) - 126) + 0.49999997f; break;
        case 6: x[i] = i % 2 ? -3.0f : 3.0f; break;
        default: x[i] = std::ldexp(normal(random), int(random() % 40) - 30); break;
        }
    }
    return x;
}

class rows : public testing::TestWithParam<int> {};

TEST_P(rows, quantize_like_kvp_quantize_row) {
    std::mt19937_64 random(3);
    const uint32_t n = 5, heads = 3;
    for (uint32_t elements : {64u, 80u, 128u, 576u}) {
        const size_t row = kvp_row_bytes(GetParam(), elements);
        if (!row) {
            continue;
        }
        for (uint32_t kind = 0; kind < 8; ++kind) {
            // Strides with gaps, as of a view of a larger tensor.
            const uint32_t head_stride = elements + 8, row_stride = heads * head_stride + 16;
            const std::vector<float> x = hard_values(random, n * row_stride, kind);
            std::vector<uint8_t> got(n * heads * row, 0xab), want(n * heads * row);
            quantize_args a = {};
            a.src = x.data();
            a.dst = got.data();
            a.row_stride = row_stride;
            a.head_stride = head_stride;
            a.n = n;
            a.heads = heads;
            a.elements = elements;
            a.type = uint32_t(GetParam());
            a.row = uint32_t(row);
            const uint32_t blocks = (n * heads * ((elements + 31) / 32) + quant_block - 1) / quant_block;
            ASSERT_EQ(emulator::run({blocks, 1, 1, quant_block}, {}, [&] { kvp_emulated::quantize(a); }), "");
            for (uint32_t i = 0; i < n; ++i) {
                for (uint32_t h = 0; h < heads; ++h) {
                    kvp_quantize_row(GetParam(), &x[i * row_stride + h * head_stride], &want[(i * heads + h) * row], elements);
                }
            }
            ASSERT_EQ(got, want) << "elements " << elements << " kind " << kind;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(types, rows, testing::Values(KVP_F16, KVP_Q8_0, KVP_Q4_0),
                         [](const auto & info) { return kvp_type_name(info.param); });

// All halves, and floats around every rounding boundary.
TEST(halves, convert_like_the_types_library) {
    for (uint32_t h = 0; h < 0x10000; ++h) {
        const uint16_t half = uint16_t(h);
        float want;
        kvp_dequantize_row(KVP_F16, &half, &want, 1);
        const float got = kvp_emulated::half_to_float(half);
        ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << h;
        for (float x : {want, std::nextafter(want, -1e9f), std::nextafter(want, 1e9f), want * 1.00048828125f, want * 1.000244140625f}) {
            uint16_t back;
            kvp_quantize_row(KVP_F16, &x, &back, 1);
            if (!std::isnan(x)) {
                ASSERT_EQ(kvp_emulated::float_to_half(x), back) << x;
            }
        }
    }
}

TEST(patch, puts_rows_into_their_cells_and_nothing_else) {
    const uint32_t n = 7, page_cells = 16, cell_k = 34 * 2, cell_v = 18 * 2;
    const uint32_t cells[n] = {31, 32, 47, 48, 0, 40, 0xffffffff};
    std::vector<uint8_t> new_k(n * cell_k), new_v(n * cell_v), k(page_cells * cell_k, 1), v(page_cells * cell_v, 2);
    for (uint32_t i = 0; i < n; ++i) {
        std::memset(&new_k[i * cell_k], int(100 + i), cell_k);
        std::memset(&new_v[i * cell_v], int(200 + i), cell_v);
    }
    const patch_args a = {new_k.data(), new_v.data(), cells, k.data(), v.data(), n, 32, page_cells, cell_k, cell_v};
    ASSERT_EQ(emulator::run({n, 1, 1, copy_block}, {}, [&] { kvp_emulated::patch(a); }), "");
    for (uint32_t c = 0; c < page_cells; ++c) {
        const int i = c == 0 ? 1 : c == 15 ? 2 : c == 8 ? 5 : -1;
        EXPECT_EQ(k[c * cell_k], i < 0 ? 1 : 100 + i);
        EXPECT_EQ(k[(c + 1) * cell_k - 1], i < 0 ? 1 : 100 + i);
        EXPECT_EQ(v[c * cell_v], i < 0 ? 2 : 200 + i);
        EXPECT_EQ(v[(c + 1) * cell_v - 1], i < 0 ? 2 : 200 + i);
    }
}

} // namespace
