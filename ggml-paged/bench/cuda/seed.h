// Figures of the project from which this one took its names, on a Quadro M6000 with PCIe
// 3.0: one token over K and V in host memory, 40 query heads and 8 K/V heads of 128, f16.
#pragma once

#include <cstdint>

struct seed_row {
    uint32_t tokens;
    double   ms_per_layer;  // and token
    double   tokens_per_s;  // of a model of SEED_LAYERS layers
};

constexpr uint32_t SEED_LAYERS = 48;

constexpr seed_row SEED[] = {
    {4096, 6.2, 3.4}, {8192, 12.4, 1.7}, {16384, 24.8, 0.84}, {32768, 46.8, 0.45}, {65536, 91.7, 0.23},
};

constexpr double model_ms(double ms_per_layer) { return ms_per_layer * SEED_LAYERS; }
constexpr double tokens_per_s(double ms_per_layer) { return 1e3 / model_ms(ms_per_layer); }

// Both of its columns say the same, to the digits that it gives.
constexpr bool agree() {
    for (const seed_row & r : SEED) {
        const double ratio = tokens_per_s(r.ms_per_layer) / r.tokens_per_s;
        if (ratio < 0.97 || ratio > 1.03) {
            return false;
        }
    }
    return true;
}
static_assert(agree(), "the table contradicts itself");
