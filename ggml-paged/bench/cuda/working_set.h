// How many layers a measurement goes over in turns. One layer of a short context would stay
// in the device's cache from one repetition to the next, as it does not in a model, whose
// other layers are attended to in between.
#pragma once

#include <algorithm>
#include <cstdint>

constexpr uint64_t MIB = uint64_t(1) << 20;

constexpr uint64_t TIMES_L2       = 4;   // the working set, in caches
constexpr uint32_t LAYERS_MIN     = 2;   // so that no layer follows itself
constexpr uint32_t LAYERS_MAX     = 48;
constexpr uint64_t L2_IF_NOT_TOLD = 64 * MIB;

constexpr uint32_t layers_for(uint64_t l2_bytes, uint64_t layer_bytes) {
    const uint64_t wanted = TIMES_L2 * (l2_bytes ? l2_bytes : L2_IF_NOT_TOLD);
    return uint32_t(std::min<uint64_t>(std::max<uint64_t>((wanted + layer_bytes - 1) / layer_bytes, LAYERS_MIN), LAYERS_MAX));
}

// 4k tokens of 8 heads of 128 in f16 are 16 MiB: a third of an H100's cache.
static_assert(layers_for(50 * MIB, 16 * MIB) == 13, "a card with a large cache");
static_assert(layers_for(3 * MIB, 16 * MIB) == LAYERS_MIN, "an M6000");
static_assert(layers_for(0, 16 * MIB) == 16, "a device that does not tell");
static_assert(layers_for(50 * MIB, 1 * MIB) == LAYERS_MAX, "a context of next to nothing");
static_assert(layers_for(50 * MIB, 256 * MIB) == LAYERS_MIN, "64k tokens");
