#include "cpu/system.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

namespace kvc {

namespace {

// NORESERVE: addresses cost nothing under the usual overcommit. Under overcommit_memory=2
// the kernel ignores the flag.
void * map_addresses(size_t bytes) {
    void * at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) {
        // For people who read smaps. Kernels without names refuse, and nothing depends on it.
        (void) prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, bytes, "kvtier kv");
    }
    return at;
}

}  // namespace

const System & real_system() {
    static const System system{map_addresses, munmap, madvise};
    return system;
}

}  // namespace kvc
