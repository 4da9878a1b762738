// Buffers in pinned host memory are those of the CPU, in other memory.
#include "buffer.h"
#include "memory.h"

namespace fakegpu {

static const char * get_name(ggml_backend_buffer_type_t) {
    return "CUDA_Host";
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    pinned_free(buffer->context);
    delete buffer;
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(pinned_malloc(size), size);
    buffer->buft                 = type;
    buffer->iface.free_buffer    = free_buffer;
    return buffer;
}

ggml_backend_buffer_type_t new_host_type(ggml_backend_dev_t device) {
    ggml_backend_buffer_type_i interface = ggml_backend_cpu_buffer_type()->iface;
    interface.get_name       = get_name;
    interface.alloc_buffer   = alloc_buffer;
    interface.noalloc_buffer = nullptr;
    return new ggml_backend_buffer_type{interface, device, nullptr, false};
}

}  // namespace fakegpu
