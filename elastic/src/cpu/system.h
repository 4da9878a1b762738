// The calls of the system that host memory needs, as a table, so that tests can fail them.
#pragma once

#include <cstddef>

namespace kvc {

struct System {
    void * (*map)(size_t bytes);                              // MAP_FAILED and errno after a failure
    int    (*unmap)(void * at, size_t bytes);
    int    (*advise)(void * at, size_t bytes, int advice);    // madvise
};

const System & real_system();

}  // namespace kvc
