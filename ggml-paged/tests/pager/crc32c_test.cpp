// The checksum against known values, and against its definition.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pager/crc32c.h"

namespace {

using sum = uint32_t (*)(const void *, size_t, uint32_t);

// Bit by bit, as it is defined.
uint32_t defined(const uint8_t * at, size_t bytes, uint32_t before) {
    uint32_t state = ~before;
    for (; bytes > 0; at++, bytes--) {
        state ^= *at;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0);
        }
    }
    return ~state;
}

class Crc32c : public testing::TestWithParam<sum> {
  protected:
    std::vector<uint8_t> random_bytes(size_t n) {
        std::mt19937 rng(uint32_t(n) + 1);
        std::vector<uint8_t> bytes(n);
        for (uint8_t & b : bytes) {
            b = uint8_t(rng());
        }
        return bytes;
    }
};

TEST_P(Crc32c, OfKnownData) {
    const sum f = GetParam();
    const auto of = [f](const std::string & s) { return f(s.data(), s.size(), 0); };
    EXPECT_EQ(0u, of(""));
    EXPECT_EQ(0xe3069283u, of("123456789"));
    // RFC 3720, B.4.
    EXPECT_EQ(0x8a9136aau, of(std::string(32, '\0')));
    EXPECT_EQ(0x62a8ab43u, of(std::string(32, '\xff')));
    std::string up, down;
    for (int i = 0; i < 32; i++) {
        up += char(i);
        down += char(31 - i);
    }
    EXPECT_EQ(0x46dd794eu, of(up));
    EXPECT_EQ(0x113fdb5cu, of(down));
}

TEST_P(Crc32c, AtEveryAlignmentAndLength) {
    const sum f = GetParam();
    const auto bytes = random_bytes(4096);
    for (size_t from = 0; from < 16; from++) {
        // One checksum of the definition per alignment, which grows with the length.
        uint32_t expected = 0;
        for (size_t n = 0; n + from < bytes.size(); n++) {
            ASSERT_EQ(expected, f(&bytes[from], n, 0)) << n << " bytes from " << from;
            expected = defined(&bytes[from + n], 1, expected);
        }
    }
}

TEST_P(Crc32c, OfLongData) {
    const sum f = GetParam();
    const auto bytes = random_bytes(300000);
    for (size_t n : {65519u, 65520u, 65521u, 65535u, 65536u, 65537u, 131072u, 299990u}) {
        for (size_t from : {0u, 1u, 7u}) {
            EXPECT_EQ(defined(&bytes[from], n, 0), f(&bytes[from], n, 0)) << n << " bytes from " << from;
        }
    }
}

TEST_P(Crc32c, InParts) {
    const sum f = GetParam();
    const auto bytes = random_bytes(100000);
    const uint32_t whole = f(bytes.data(), bytes.size(), 0);
    for (size_t first : {0u, 1u, 8u, 1535u, 65536u, 99999u, 100000u}) {
        EXPECT_EQ(whole, f(&bytes[0] + first, bytes.size() - first, f(bytes.data(), first, 0))) << first;
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, Crc32c, testing::Values(&kvp::crc32c, &kvp::crc32c_portable));

}  // namespace
