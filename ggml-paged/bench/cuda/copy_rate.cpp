// copy_rate: prints which device CUDA uses, and how fast copies to it are, a line of JSON per
// size. Builds alone, where nothing else does: nvcc -O2 -std=c++17 -x cu copy_rate.cpp link.cpp
#include <cuda_runtime.h>

#include <cstdio>
#include <initializer_list>

#include "link.h"

int main() {
    cudaDeviceProp device;
    char bus[32] = "";
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess) {
        std::fprintf(stderr, "copy_rate: CUDA sees no device: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    std::printf("{\"cuda_device\":\"%s\",\"pci_bus_id\":\"%s\",\"multiprocessors\":%d,\"l2_mib\":%.1f}\n", device.name, bus,
                device.multiProcessorCount, device.l2CacheSize / 1048576.0);
    for (const host_memory kind : {host_memory::pageable, host_memory::page_locked}) {
        for (const size_t mib : {1, 8, 64}) {
            const double rate = copy_rate(kind, mib << 20);
            if (rate == 0) {
                std::fprintf(stderr, "copy_rate: a copy to the device failed; does nvidia-smi show one, and is memory free?\n");
                return 1;
            }
            std::printf("{\"memory\":\"%s\",\"copy_mib\":%zu,\"gb_per_s\":%.3f}\n",
                        kind == host_memory::pageable ? "pageable" : "page-locked", mib, rate / 1e9);
            std::fflush(stdout);
        }
    }
    return 0;
}
