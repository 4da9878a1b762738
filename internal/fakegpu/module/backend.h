// A backend is a stream of a device.
#pragma once

#include "ggml-backend-impl.h"

namespace fakegpu {

ggml_backend_t new_backend(ggml_backend_dev_t device);

}  // namespace fakegpu
