#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace fakegpu {

static std::string text(const char * name) {
    const char * value = getenv(name);
    return value != nullptr ? value : "";
}

static size_t number(const char * name, size_t unset) {
    const std::string value = text(name);
    return value.empty() ? unset : strtoull(value.c_str(), nullptr, 10);
}

const Settings & settings() {
    static const auto * read = new Settings{
        (int) std::min<size_t>(number("FAKEGPU_DEVICES", 1), max_devices),
        number("FAKEGPU_MEMORY", size_t(8) << 30),
        (unsigned) number("FAKEGPU_DELAY_US", 200),
        (int) std::max<size_t>(number("FAKEGPU_THREADS", 1), 1),
        number("FAKEGPU_PAGED", 0) != 0,
        text("FAKEGPU_DIR"),
        text("FAKEGPU_DRIVER"),
    };
    return *read;
}

std::string device_id(int device) {
    return "GPU-fake-0000-" + std::to_string(device);
}

// A name is an id or an index. -1: no device has it.
static int find_device(const std::string & name) {
    for (int i = 0; i < settings().devices; i++) {
        if (name == std::to_string(i) || name == device_id(i)) {
            return i;
        }
    }
    return -1;
}

std::vector<int> visible_devices() {
    std::vector<int> visible;
    const char * chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (chosen == nullptr) {
        for (int i = 0; i < settings().devices; i++) {
            visible.push_back(i);
        }
        return visible;
    }
    std::istringstream names(chosen);
    for (std::string name; std::getline(names, name, ',');) {
        const int device = find_device(name);
        // CUDA hides all devices after a name that it does not know.
        if (device < 0) {
            break;
        }
        visible.push_back(device);
    }
    return visible;
}

}  // namespace fakegpu
