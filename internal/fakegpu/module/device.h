// The devices.
#pragma once

#include <string>

#include "ggml-backend-impl.h"

namespace fakegpu {

struct DeviceContext {
    int         number;  // of the card; names count the visible ones
    std::string name, id, pci;
    ggml_backend_buffer_type_t type = nullptr, host_type = nullptr;
};

ggml_backend_dev_t new_device(ggml_backend_reg_t registry, int index, int number);

inline DeviceContext * context_of(ggml_backend_dev_t device) {
    return (DeviceContext *) device->context;
}

}  // namespace fakegpu
