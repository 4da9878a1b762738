#include "processors.h"

#if defined(__linux__)
#include <sched.h>
#endif

std::vector<uint32_t> processors() {
    std::vector<uint32_t> out;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
            if (CPU_ISSET(i, &set)) {
                out.push_back(i);
            }
        }
    }
#endif
    return out;
}

void stay_on_processor(uint32_t index, uint32_t wanted) {
#if defined(__linux__)
    const std::vector<uint32_t> all = processors();
    if (all.size() < wanted || index >= all.size()) {
        return;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(all[index], &set);
    sched_setaffinity(0, sizeof set, &set);
#else
    (void) index;
    (void) wanted;
#endif
}
