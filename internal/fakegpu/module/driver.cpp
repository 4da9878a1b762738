#include "driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "fakecuda.h"
#include "settings.h"
#include "stream.h"

namespace fakegpu {

static decltype(&fakecuda_get_state) get_state = nullptr;

static void wait_for_streams(void *) {
    wait_for_all_streams();
}

static int streams_busy(void *) {
    return any_stream_busy();
}

static void * function(void * library, const char * name) {
    void * found = library != nullptr ? dlsym(library, name) : nullptr;
    if (found == nullptr) {
        fprintf(stderr, "fakegpu: FAKEGPU_DRIVER: %s\n", dlerror());
        abort();
    }
    return found;
}

void connect_driver() {
    const char * path = settings().driver.c_str();
    if (*path == '\0') {
        return;
    }
    // The same path gives the same instance to elastic, which loads it by KVC_CUDA_LIBRARY.
    void * library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const auto queue = (decltype(&fakecuda_queue)) function(library, "fakecuda_queue");
    get_state        = (decltype(&fakecuda_get_state)) function(library, "fakecuda_get_state");
    queue(wait_for_streams, streams_busy, nullptr);
}

size_t driver_memory() {
    if (get_state == nullptr) {
        return 0;
    }
    fakecuda_state state;
    get_state(&state);
    return state.used;
}

}  // namespace fakegpu
