// Conversion of rows of one type each; kv_types.h chooses between them.
#pragma once

#include <cstdint>

namespace kvp {

void f16_from_floats(const float * src, uint16_t * dst, uint32_t n);
void f16_to_floats(const uint16_t * src, float * dst, uint32_t n);

struct block_q8_0 {
    uint16_t d;
    int8_t   q[32];
};
static_assert(sizeof(block_q8_0) == 34, "a q8_0 block has 34 bytes");

struct block_q4_0 {
    uint16_t d;
    uint8_t  q[16];
};
static_assert(sizeof(block_q4_0) == 18, "a q4_0 block has 18 bytes");

// n is a number of blocks.
void q8_0_from_floats(const float * src, block_q8_0 * dst, uint32_t n);
void q8_0_to_floats(const block_q8_0 * src, float * dst, uint32_t n);
void q4_0_from_floats(const float * src, block_q4_0 * dst, uint32_t n);
void q4_0_to_floats(const block_q4_0 * src, float * dst, uint32_t n);

}  // namespace kvp
