// The product of matrices that the lanes of a warp hold together, as a device's tensor
// cores compute it: d = a b + c with a of 16 x 16, b of 16 x 8 halves, c and d of 16 x 8
// floats. cuda/portable.cuh says which lane has which element.
#pragma once

#include <cstdint>

namespace emulator {

// What a lane gives: pairs of halves, the first in the low 16 bits.
struct mma_operands {
    uint32_t a[4], b[2];
    float    c[4];
};

// multiply computes d, four elements for each lane. Products are exact, and sums are f32 in
// the order of the inner index.
void multiply(const mma_operands (&lanes)[32], float (&d)[32][4]);

} // namespace emulator
