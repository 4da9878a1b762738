// Rows against scalar definitions of their own, on ordinary and on hostile values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kv_types.h"
#include "types/half.h"

namespace {

// The value of a half, from its definition.
double half_value(uint16_t h) {
    const int    e = h >> 10 & 31;
    const double m = h & 1023;
    const double s = h & 0x8000 ? -1 : 1;
    return s * (e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25));
}

// The nearest half, ties to the even one, by looking at the neighbours of a guess.
uint16_t nearest_half(float f) {
    const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    const double   x    = std::fabs(double(f));
    if (x >= 65520) {
        return uint16_t(sign | 0x7c00);
    }
    uint16_t low = 0, high = 0x7bff;
    while (low < high) {  // the largest half that is not above x
        const uint16_t mid = uint16_t((low + high + 1) / 2);
        (half_value(mid) <= x ? low : high) = half_value(mid) <= x ? mid : uint16_t(mid - 1);
    }
    const double below = x - half_value(low);
    const double above = (low == 0x7bff ? 65536.0 : half_value(uint16_t(low + 1))) - x;
    const bool up = above < below || (above == below && (low & 1) != 0);
    return uint16_t(sign | (low + up));
}

std::vector<float> hostile_values() {
    std::vector<float> v{0.0f, -0.0f, 1.0f, -1.0f, 65504.0f, 65519.996f, 65520.0f, -65520.0f, 1e30f, -3e38f,
                         5.96e-8f, 2.98e-8f, 2.9802322e-8f, 2.9802326e-8f, 6.1035156e-5f, 6.1e-5f, -6.09e-5f,
                         1e-40f, -1e-45f, 1.17549435e-38f, 2049.0f, 2051.0f, -4098.0f, 0.33333334f};
    std::mt19937 rng(7);
    for (int i = 0; i < 4000; i++) {
        const uint32_t bits = uint32_t(rng());
        float f;
        std::memcpy(&f, &bits, 4);
        v.push_back(std::isfinite(f) ? f : 3.0f);
        v.push_back(std::ldexp(float(rng() % 8192) / 2.0f, int(rng() % 44) - 30));  // many ties
    }
    return v;
}

std::vector<std::vector<float>> rows() {
    std::vector<std::vector<float>> out;
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    for (float scale : {0.0f, 1e-44f, 1e-40f, 1e-38f, 1e-20f, 1e-6f, 1e-3f, 1.0f, 30.0f, 1e4f, 1e30f}) {
        for (int repeat = 0; repeat < 20; repeat++) {
            std::vector<float> row(96);
            for (float & x : row) {
                x = scale * normal(rng);
            }
            out.push_back(row);
        }
    }
    std::vector<float> ties(96);
    for (int i = 0; i < 96; i++) {
        ties[i] = float(i % 32 - 15) + (i % 2 ? 0.5f : 0.0f);
    }
    out.push_back(ties);
    out.emplace_back(96, -2.5f);
    out.emplace_back(96, 0.0f);
    out.back()[95] = -1.0f;
    out.emplace_back(96, 3e38f);
    return out;
}

uint16_t stored_half(const uint8_t * at) {
    uint16_t h;
    std::memcpy(&h, at, 2);
    return h;
}

}  // namespace

TEST(Half, RoundsToNearestEven) {
    std::vector<float> v = hostile_values();
    std::vector<uint16_t> row(v.size());
    kvp_quantize_row(KVP_F16, v.data(), row.data(), uint32_t(v.size()));
    for (size_t i = 0; i < v.size(); i++) {
        ASSERT_EQ(nearest_half(v[i]), row[i]) << v[i];
        ASSERT_EQ(nearest_half(v[i]), kvp::half_of_float(v[i])) << v[i];
    }
}

TEST(Half, EveryValueConvertsBack) {
    std::vector<uint16_t> all(65536), again(65536);
    for (uint32_t i = 0; i < 65536; i++) {
        all[i] = uint16_t(i);
    }
    std::vector<float> f(65536);
    kvp_dequantize_row(KVP_F16, all.data(), f.data(), 65536);
    kvp_quantize_row(KVP_F16, f.data(), again.data(), 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        const float portable = kvp::float_of_half(uint16_t(i));
        if ((i & 0x7c00) == 0x7c00) {
            ASSERT_EQ((i & 0x3ff) == 0, std::isinf(f[i])) << i;
            ASSERT_EQ((i & 0x3ff) == 0, std::isinf(portable)) << i;
            ASSERT_EQ((i & 0x3ff) != 0, std::isnan(f[i])) << i;
            ASSERT_EQ((i & 0x3ff) != 0, std::isnan(portable)) << i;
            continue;
        }
        ASSERT_EQ(half_value(uint16_t(i)), double(f[i])) << i;
        ASSERT_EQ(half_value(uint16_t(i)), double(portable)) << i;
        ASSERT_EQ(i, again[i]);
    }
}

TEST(Half, OddLengthsTouchNothingElse) {
    const std::vector<float> ones(20, 1.0f);
    for (uint32_t n = 0; n < 20; n++) {
        std::vector<uint16_t> h(20, 0x1234);
        kvp_quantize_row(KVP_F16, ones.data(), h.data(), n);
        for (uint32_t i = 0; i < 20; i++) {
            ASSERT_EQ(i < n ? 0x3c00 : 0x1234, h[i]) << n;
        }
    }
}

TEST(Q8_0, IsTheReference) {
    for (const auto & row : rows()) {
        std::vector<uint8_t> q(kvp_row_bytes(KVP_Q8_0, 96));
        ASSERT_EQ(3u * 34, q.size());
        kvp_quantize_row(KVP_Q8_0, row.data(), q.data(), 96);
        std::vector<float> back(96);
        kvp_dequantize_row(KVP_Q8_0, q.data(), back.data(), 96);
        for (int b = 0; b < 3; b++) {
            float amax = 0;
            for (int i = 0; i < 32; i++) {
                amax = std::max(amax, std::fabs(row[b * 32 + i]));
            }
            volatile float d  = amax / 127;
            volatile float id = d != 0 ? 1 / d : 0;
            ASSERT_EQ(nearest_half(d), stored_half(&q[b * 34]));
            for (int i = 0; i < 32; i++) {
                volatile float x = row[b * 32 + i] * id;
                const int want = std::isinf(id) ? 0 : int(std::round(x));
                ASSERT_EQ(want, int8_t(q[b * 34 + 2 + i])) << row[b * 32 + i];
                if (nearest_half(d) < 0x7c00) {
                    ASSERT_EQ(float(half_value(nearest_half(d)) * want), back[b * 32 + i]);
                }
            }
        }
    }
}

TEST(Q4_0, IsTheReference) {
    for (const auto & row : rows()) {
        std::vector<uint8_t> q(kvp_row_bytes(KVP_Q4_0, 96));
        ASSERT_EQ(3u * 18, q.size());
        kvp_quantize_row(KVP_Q4_0, row.data(), q.data(), 96);
        std::vector<float> back(96);
        kvp_dequantize_row(KVP_Q4_0, q.data(), back.data(), 96);
        for (int b = 0; b < 3; b++) {
            const auto smaller = [](float x, float y) { return std::fabs(x) < std::fabs(y); };
            const float max = *std::max_element(&row[b * 32], &row[b * 32] + 32, smaller);  // the first of equals
            volatile float d  = (max == 0 ? 0.0f : max) / -8;
            volatile float id = d != 0 ? 1 / d : 0;
            ASSERT_EQ(nearest_half(d), stored_half(&q[b * 18]));
            for (int i = 0; i < 32; i++) {
                volatile float x = row[b * 32 + i] * id;
                volatile float y = x + 8.5f;
                const int want = std::isinf(id) ? 0 : std::min(15, int(y));
                const uint8_t byte = q[b * 18 + 2 + i % 16];
                ASSERT_EQ(want, i < 16 ? byte & 15 : byte >> 4) << row[b * 32 + i];
                if ((nearest_half(d) & 0x7fff) < 0x7c00) {
                    ASSERT_EQ(float(half_value(nearest_half(d)) * (want - 8)), back[b * 32 + i]);
                }
            }
        }
    }
}

TEST(Types, AreRefusedWhereTheyDoNotFit) {
    EXPECT_EQ(0u, kvp_row_bytes(KVP_Q8_0, 33));
    EXPECT_EQ(0u, kvp_row_bytes(KVP_Q4_0, 16));
    EXPECT_EQ(0u, kvp_row_bytes(0, 32));
    EXPECT_EQ(66u, kvp_row_bytes(KVP_F16, 33));
    EXPECT_FALSE(kvp_type_valid(0));
    EXPECT_FALSE(kvp_type_valid(3));
    EXPECT_TRUE(kvp_type_valid(KVP_Q4_0));
    EXPECT_STREQ("q8_0", kvp_type_name(KVP_Q8_0));
    EXPECT_EQ(nullptr, kvp_type_name(30));
}
