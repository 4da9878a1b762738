// The operations that the card has.
#pragma once

#include "ggml-backend-impl.h"

namespace fakegpu {

bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op);

}  // namespace fakegpu
