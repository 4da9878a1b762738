// Random histories of a pool on a device, against a map of the byte that each granule holds.
#pragma once

#include <cstdint>

#include "device.h"

namespace card {

struct Played {
    uint64_t steps = 0, commits = 0, uncommits = 0, granules_read = 0;
    // The first granule that held something else: a sentence, or "".
    char wrong[200] = "";
};

// play plays histories for some seconds, or until the first granule that is wrong. Work is queued
// before each change of mappings that writes all granules that stay, and some that are not committed.
Played play(Device & device, uint64_t seed, double seconds);

}  // namespace card
