#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "timing.h"

namespace {

constexpr size_t READ_WORDS = (size_t(512) << 20) / sizeof(uint64_t);
constexpr int    READ_REPETITIONS = 5;

}  // namespace

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        // ARM kernels name the part by number only.
        for (const char * key : {"model name", "CPU part"}) {
            const size_t colon = line.find(": ");
            if (line.rfind(key, 0) == 0 && colon != std::string::npos) {
                return line.substr(colon + 2);
            }
        }
    }
    return "unknown";
}

uint64_t l3_bytes() {
    uint64_t largest = 0;
    for (int index = 0; index < 8; index++) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        uint64_t size = 0;
        char unit = 0;
        if (file >> size) {
            file >> unit;
            largest = std::max(largest, unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size);
        }
    }
    return largest;
}

double load_average() {
    double minutes[1] = {0};
    return getloadavg(minutes, 1) == 1 ? minutes[0] : 0;
}

double memory_read_rate(team & threads) {
    std::vector<uint64_t> memory(READ_WORDS, 1);
    std::vector<uint64_t> sums(threads.size() * 64);
    std::vector<double> rates;
    for (int i = 0; i < READ_REPETITIONS; i++) {
        const stopwatch watch;
        threads.run([&](uint32_t member) {
            const size_t first = READ_WORDS * member / threads.size(), end = READ_WORDS * (member + 1) / threads.size();
            uint64_t sum = 0;
            for (size_t w = first; w < end; w++) {
                sum += memory[w];
            }
            sums[member * 64] = sum;
        });
        rates.push_back(READ_WORDS * sizeof(uint64_t) / watch.seconds());
    }
    // The sums are used, or the compiler could leave the reading out.
    uint64_t total = 0;
    for (uint64_t sum : sums) {
        total += sum;
    }
    return total == READ_WORDS ? median(rates) : 0;
}
