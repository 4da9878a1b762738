// The registry, which is the module's entry.
#include <string>
#include <vector>

#include "cpu.h"
#include "device.h"
#include "driver.h"
#include "ggml-paged.h"
#include "settings.h"

namespace fakegpu {

static std::vector<ggml_backend_dev_t> & devices_of(ggml_backend_reg_t registry) {
    return *(std::vector<ggml_backend_dev_t> *) registry->context;
}

static const char * get_name(ggml_backend_reg_t) {
    return "CUDA";
}

static size_t get_device_count(ggml_backend_reg_t registry) {
    return devices_of(registry).size();
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t registry, size_t index) {
    return devices_of(registry).at(index);
}

static ggml_backend_feature * get_features(ggml_backend_reg_t) {
    static ggml_backend_feature features[] = {{"FAKE", "1"}, {nullptr, nullptr}};
    return features;
}

// get_proc_address may have what the CPU has of paged attention: pages are no work for the card, see support.cpp.
static void * get_proc_address(ggml_backend_reg_t, const char * name) {
    if (settings().paged && std::string(name) == GGML_PAGED_PROC_NAME) {
        return cpu_device()->reg->iface.get_proc_address(cpu_device()->reg, name);
    }
    return std::string(name) == "ggml_backend_get_features" ? (void *) get_features : nullptr;
}

static ggml_backend_reg_t new_registry() {
    connect_driver();
    const ggml_backend_reg_i interface = {get_name, get_device_count, get_device, get_proc_address};
    auto * devices  = new std::vector<ggml_backend_dev_t>;
    auto * registry = new ggml_backend_reg{GGML_BACKEND_API_VERSION, interface, devices};
    for (const int number : visible_devices()) {
        devices->push_back(new_device(registry, (int) devices->size(), number));
    }
    return registry;
}

static ggml_backend_reg_t registry() {
    static ggml_backend_reg_t only = new_registry();
    return only;
}

}  // namespace fakegpu

GGML_BACKEND_DL_IMPL(fakegpu::registry)
