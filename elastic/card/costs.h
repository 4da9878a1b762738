// What it costs to commit and to uncommit memory of a device.
#pragma once

#include <cstddef>

#include "device.h"

namespace card {

struct Costs {
    size_t granule_bytes, granules;         // granules: of one call
    double commit_us, kept_us, uncommit_us; // of one call, medians; kept: the memory is prealloc
};

// measure times calls for `granules` granules each, with an idle device. The costs are zero where the device
// has too little free memory for that.
Costs measure(Device & device, size_t granules, bool bare);

}  // namespace card
