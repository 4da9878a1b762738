#include "device.h"

#include <algorithm>
#include <cstdio>

#include "backend.h"
#include "buffer.h"
#include "event.h"
#include "ledger.h"
#include "settings.h"
#include "support.h"

namespace fakegpu {

static const char * get_name(ggml_backend_dev_t device) {
    return context_of(device)->name.c_str();
}

static const char * get_description(ggml_backend_dev_t) {
    return "NVIDIA Fake GPU";
}

static void get_memory(ggml_backend_dev_t device, size_t * free, size_t * total) {
    *total = settings().memory;
    *free  = *total - std::min(*total, used_memory(context_of(device)->number));
}

static enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void get_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    props->name          = get_name(device);
    props->description   = get_description(device);
    props->id            = context_of(device)->id.c_str();
    props->type          = get_type(device);
    props->device_id     = context_of(device)->pci.c_str();
    props->memory_total  = props->memory_free = 0; // as ggml-cuda has it
    props->compute_major = 8;
    props->compute_minor = 6;
    props->driver_major  = 13;
    props->driver_minor  = 0;
    props->integrated    = 0;
    props->library       = "CUDA";
    props->caps          = {
        /* .async                = */ true,
        /* .host_buffer          = */ true,
        /* .buffer_from_host_ptr = */ false,
        /* .events               = */ true,
    };
}

static ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    return new_backend(device);
}

static ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t device) {
    return context_of(device)->type;
}

static ggml_backend_buffer_type_t get_host_buffer_type(ggml_backend_dev_t device) {
    return context_of(device)->host_type;
}

static bool supports_buft(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return is_device_type(type) && type->device == device;
}

static bool offload_op(ggml_backend_dev_t, const ggml_tensor *) {
    return false;
}

static const ggml_backend_device_i device_interface = {
    /* .get_name             = */ get_name,
    /* .get_description      = */ get_description,
    /* .get_memory           = */ get_memory,
    /* .get_type             = */ get_type,
    /* .get_props            = */ get_props,
    /* .init_backend         = */ init_backend,
    /* .get_buffer_type      = */ get_buffer_type,
    /* .get_host_buffer_type = */ get_host_buffer_type,
    /* .buffer_from_host_ptr = */ nullptr,
    /* .supports_op          = */ supports_op,
    /* .supports_buft        = */ supports_buft,
    /* .offload_op           = */ offload_op,
    /* .event_new            = */ new_event,
    /* .event_free           = */ free_event,
    /* .event_synchronize    = */ synchronize_event,
    /* .reset                = */ nullptr,
};

static std::string pci_address(int number) {
    char address[16];
    snprintf(address, sizeof address, "0000:%02x:00.0", (number + 1) & 0xFF);
    return address;
}

ggml_backend_dev_t new_device(ggml_backend_reg_t registry, int index, int number) {
    auto * context = new DeviceContext{number, "CUDA" + std::to_string(index), device_id(number), pci_address(number)};
    auto * device  = new ggml_backend_device{device_interface, registry, context};
    context->type      = new_device_type(device, number, context->name.c_str());
    context->host_type = new_host_type(device);
    return device;
}

}  // namespace fakegpu
