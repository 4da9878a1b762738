// The functions of a device's buffers. They act at once, and wait for no stream: ggml-cuda
// does them in cudaStreamPerThread. They use tensor->data alone, wherever it is.
#include "buffer.h"

#include <cstring>
#include <string>

#include "ggml-impl.h"
#include "memory.h"

namespace fakegpu {

constexpr size_t alignment   = 128;
constexpr size_t row_padding = 512; // MATRIX_ROW_PADDING

static BufferContext * context_of(ggml_backend_buffer_t buffer) {
    return (BufferContext *) buffer->context;
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    device_free(context_of(buffer)->dev_ptr);
    delete context_of(buffer);
    delete buffer;
}

static void * get_base(ggml_backend_buffer_t buffer) {
    return context_of(buffer)->dev_ptr;
}

// The padding behind a quantized tensor is zero, as ggml-cuda has it.
static ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    if (tensor->view_src != nullptr || !ggml_is_quantized(tensor->type) ||
        ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_COMPUTE) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t size   = ggml_nbytes(tensor);
    const size_t padded = ggml_backend_buft_get_alloc_size(buffer->buft, tensor);
    memset((char *) tensor->data + size, 0, padded - size);
    return GGML_STATUS_SUCCESS;
}

static void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    memset((char *) tensor->data + offset, value, size);
}

static void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    memcpy((char *) tensor->data + offset, data, size);
}

static void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    memcpy(data, (const char *) tensor->data + offset, size);
}

static bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    if (!is_device_buffer(src->buffer)) {
        return false;
    }
    memmove(dst->data, src->data, ggml_nbytes(src));
    return true;
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(context_of(buffer)->dev_ptr, value, buffer->size);
}

static const ggml_backend_buffer_i buffer_interface = {
    /* .free_buffer   = */ free_buffer,
    /* .get_base      = */ get_base,
    /* .init_tensor   = */ init_tensor,
    /* .memset_tensor = */ memset_tensor,
    /* .set_tensor    = */ set_tensor,
    /* .get_tensor    = */ get_tensor,
    /* .cpy_tensor    = */ cpy_tensor,
    /* .clear         = */ clear,
    /* .reset         = */ nullptr,
};

bool is_device_buffer(ggml_backend_buffer_t buffer) {
    return buffer->iface.free_buffer == free_buffer;
}

struct TypeContext {
    int         device;
    std::string name;
};

static TypeContext * context_of(ggml_backend_buffer_type_t type) {
    return (TypeContext *) type->context;
}

static const char * get_name(ggml_backend_buffer_type_t type) {
    return context_of(type)->name.c_str();
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    const int device = context_of(type)->device;
    void *    base   = device_malloc(device, size);
    if (base == nullptr) {
        GGML_LOG_ERROR("fakegpu: allocating %.2f MiB on device %d: out of memory\n", size / 1024.0 / 1024.0, device);
        return nullptr;
    }
    return ggml_backend_buffer_init(type, buffer_interface, new BufferContext{device, base}, size);
}

// A buffer without memory has no functions.
static ggml_backend_buffer_t noalloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    return ggml_backend_buffer_init(type, {}, new BufferContext{context_of(type)->device, (void *) alignment}, size);
}

static size_t get_alignment(ggml_backend_buffer_type_t) {
    return alignment;
}

static size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const size_t beyond = tensor->ne[0] % row_padding;
    if (!ggml_is_quantized(tensor->type) || beyond == 0) {
        return ggml_nbytes(tensor);
    }
    return ggml_nbytes(tensor) + ggml_row_size(tensor->type, row_padding - beyond);
}

bool is_device_type(ggml_backend_buffer_type_t type) {
    return type->iface.get_name == get_name;
}

ggml_backend_buffer_type_t new_device_type(ggml_backend_dev_t device, int number, const char * name) {
    const ggml_backend_buffer_type_i interface = {
        /* .get_name       = */ get_name,
        /* .alloc_buffer   = */ alloc_buffer,
        /* .get_alignment  = */ get_alignment,
        /* .get_max_size   = */ nullptr,
        /* .get_alloc_size = */ get_alloc_size,
        /* .is_host        = */ nullptr,
        /* .noalloc_buffer = */ noalloc_buffer,
    };
    return new ggml_backend_buffer_type{interface, device, new TypeContext{number, name}, false};
}

}  // namespace fakegpu
