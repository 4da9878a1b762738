// The CPU backend, which computes for the card.
#pragma once

#include "ggml-backend-impl.h"

namespace fakegpu {

// cpu_device is the device of the best libggml-cpu-*.so beside this module or one folder above.
ggml_backend_dev_t cpu_device();

// new_cpu_backend makes a backend with FAKEGPU_THREADS threads.
ggml_backend_t new_cpu_backend();

}  // namespace fakegpu
