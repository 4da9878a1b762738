// Buffers in device memory and in pinned host memory, and their types.
#pragma once

#include "ggml-backend-impl.h"

namespace fakegpu {

// BufferContext has the leading fields of the one of ggml-cuda.
struct BufferContext {
    int    device;
    void * dev_ptr;
};

bool is_device_buffer(ggml_backend_buffer_t buffer);
bool is_device_type(ggml_backend_buffer_type_t type);

// new_device_type makes the type of a device's buffers. The type lives as long as the process.
ggml_backend_buffer_type_t new_device_type(ggml_backend_dev_t device, int number, const char * name);
ggml_backend_buffer_type_t new_host_type(ggml_backend_dev_t device);

}  // namespace fakegpu
