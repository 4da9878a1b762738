// The settings of the emulated card, which are environment variables.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fakegpu {

constexpr int max_devices = 16;

struct Settings {
    int         devices;  // FAKEGPU_DEVICES, 1
    size_t      memory;   // FAKEGPU_MEMORY, bytes of each device, 8 GiB
    unsigned    delay_us; // FAKEGPU_DELAY_US, 200: the mean sleep before a graph
    int         threads;  // FAKEGPU_THREADS, 1: of the CPU backend that computes
    bool        paged;    // FAKEGPU_PAGED, 0: pages are attended to on the CPU, else not at all
    std::string dir;      // FAKEGPU_DIR: where processes tell each other their use
    std::string driver;   // FAKEGPU_DRIVER: a library of fakecuda
};

const Settings & settings();

// The id of a device, as its properties and CUDA_VISIBLE_DEVICES have it.
std::string device_id(int device);

// The devices that CUDA_VISIBLE_DEVICES leaves, in its order.
std::vector<int> visible_devices();

}  // namespace fakegpu
