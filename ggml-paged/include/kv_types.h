// Element types of cached K and V, as ggml stores them.
//
// A row holds the n elements of one head of one cell. n is a multiple of the type's
// block:
//
//   type    block  bytes  layout of a block
//   f16       1      2    IEEE half
//   q8_0     32     34    half d; int8 q[32]                 x[i] = d * q[i]
//   q4_0     32     18    half d; uint8 q[16], element i in   x[i] = d * (nibble - 8)
//                         the low nibble of q[i] for i < 16,
//                         in the high nibble of q[i-16] after
//
// The values are ggml's enum ggml_type, so that they can be passed through unchanged.
// Quantizing gives the same bytes as ggml's reference quantizers.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvp_type {
    KVP_F16  = 1,
    KVP_Q4_0 = 2,
    KVP_Q8_0 = 8,
} kvp_type;

// kvp_type_valid reports whether a number is one of the types above.
int kvp_type_valid(int type);

// kvp_type_name is "f16", "q8_0", "q4_0", or NULL.
const char * kvp_type_name(int type);

// kvp_row_bytes is the size of a row of n elements; 0 where n does not fit the type.
size_t kvp_row_bytes(int type, uint32_t n);

// kvp_quantize_row converts n floats to a row. f16 keeps infinities and NaN; the other
// types leave them undefined, as in ggml.
void kvp_quantize_row(int type, const float * src, void * dst, uint32_t n);

// kvp_dequantize_row converts a row to n floats.
void kvp_dequantize_row(int type, const void * src, float * dst, uint32_t n);

#ifdef __cplusplus
}
#endif
