// New rows of K and V: quantized like kvp_quantize_row, byte for byte, and put into copies
// of their pages.
#pragma once

#include "cuda/load.cuh"

namespace KVP_KERNELS {

// Half away from zero, as roundf does. 0.5 cannot be added in float: 0.49999997 would
// round up. Blocks of denormals have no finite 1 / d: a value that does not fit a byte is 0,
// as in conversions on x86, and means 0 with the d of 0 that the block gets.
KVP_DEVICE int round_away(float x) {
    if (!(x > -129.0f && x < 129.0f)) {
        return 0;
    }
    const int   whole = (int) x;
    const float rest = x - (float) whole;
    return rest >= 0.5f ? whole + 1 : rest <= -0.5f ? whole - 1 : whole;
}

KVP_DEVICE void quantize_q8_0(const float * x, uint8_t * row, uint32_t index) {
    float amax = 0.0f;
    for (int i = 0; i < 32; ++i) {
        amax = larger(x[i] < 0 ? -x[i] : x[i], amax);
    }
    const float d = div_rounded(amax, 127.0f);
    const float id = d != 0.0f ? div_rounded(1.0f, d) : 0.0f;
    uint16_t * to = (uint16_t *) (row + 34 * index);
    to[0] = float_to_half(d);
    for (int i = 0; i < 16; ++i) {
        const uint32_t a = (uint8_t) round_away(mul_rounded(x[2 * i], id));
        const uint32_t b = (uint8_t) round_away(mul_rounded(x[2 * i + 1], id));
        to[1 + i] = (uint16_t) (a | b << 8);
    }
}

KVP_DEVICE uint32_t nibble(float x, float id) {
    const float y = add_rounded(mul_rounded(x, id), 8.5f);
    return y >= 0.0f && y < 16.0f ? (uint32_t) y : y >= 16.0f && y < 129.0f ? 15u : 0u;
}

KVP_DEVICE void quantize_q4_0(const float * x, uint8_t * row, uint32_t index) {
    float amax = 0.0f, max = 0.0f;
    for (int i = 0; i < 32; ++i) {
        const float magnitude = x[i] < 0 ? -x[i] : x[i];
        if (magnitude > amax) {
            amax = magnitude;
            max = x[i];
        }
    }
    const float d = div_rounded(max, -8.0f);
    const float id = d != 0.0f ? div_rounded(1.0f, d) : 0.0f;
    uint16_t * to = (uint16_t *) (row + 18 * index);
    to[0] = float_to_half(d);
    for (int i = 0; i < 8; ++i) {
        const uint32_t a = nibble(x[2 * i], id) | nibble(x[2 * i + 16], id) << 4;
        const uint32_t b = nibble(x[2 * i + 1], id) | nibble(x[2 * i + 17], id) << 4;
        to[1 + i] = (uint16_t) (a | b << 8);
    }
}

//   grid   x: enough blocks for n * heads * ceil(elements / 32) threads
//   block  128 threads, each with 32 elements: a block of the quantized types
KVP_GLOBAL(quant_block) void quantize(quantize_args a) {
    const uint32_t pieces = (a.elements + 31) / 32;
    const uint64_t job = (uint64_t) block_x() * quant_block + thread_index();
    if (job >= (uint64_t) a.n * a.heads * pieces) {
        return;
    }
    const uint32_t piece = (uint32_t) (job % pieces), head = (uint32_t) (job / pieces % a.heads);
    const uint32_t i = (uint32_t) (job / pieces / a.heads);
    const float * x = a.src + (int64_t) i * a.row_stride + (int64_t) head * a.head_stride + 32 * piece;
    uint8_t * row = a.dst + ((uint64_t) i * a.heads + head) * a.row;
    if (a.type == type_q8_0) {
        quantize_q8_0(x, row, piece);
    } else if (a.type == type_q4_0) {
        quantize_q4_0(x, row, piece);
    } else {
        const uint32_t n = a.elements - 32 * piece < 32 ? a.elements - 32 * piece : 32;
        uint16_t * to = (uint16_t *) row + 32 * piece;
        for (uint32_t e = 0; e < n; ++e) {
            to[e] = float_to_half(x[e]);
        }
    }
}

//   grid   x: new row
//   block  128 threads over its bytes, two at a time
KVP_GLOBAL(copy_block) void patch(patch_args a) {
    const uint32_t cell = a.cells[block_x()];
    if (cell < a.first_cell || cell - a.first_cell >= a.page_cells) {
        return;
    }
    const uint64_t i = block_x(), c = cell - a.first_cell;
    const uint16_t * k = (const uint16_t *) (a.new_k + i * a.cell_k);
    const uint16_t * v = (const uint16_t *) (a.new_v + i * a.cell_v);
    uint16_t * to_k = (uint16_t *) (a.k + c * a.cell_k);
    uint16_t * to_v = (uint16_t *) (a.v + c * a.cell_v);
    for (uint32_t j = thread_index(); j < a.cell_k / 2; j += copy_block) {
        to_k[j] = k[j];
    }
    for (uint32_t j = thread_index(); j < a.cell_v / 2; j += copy_block) {
        to_v[j] = v[j];
    }
}

} // namespace KVP_KERNELS
