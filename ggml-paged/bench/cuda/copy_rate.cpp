// copy_rate: prints how fast copies to the device are, a line of JSON per size. Builds
// alone, where nothing else does: nvcc -O2 -std=c++17 -x cu copy_rate.cpp link.cpp
#include <cstdio>
#include <initializer_list>

#include "link.h"

int main() {
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
