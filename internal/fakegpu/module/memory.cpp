#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "ledger.h"
#include "stream.h"

namespace fakegpu {

namespace {

constexpr size_t page = 4096;

struct Allocation {
    int    device; // -1: pinned host memory
    size_t size;
};

struct Allocations {
    std::mutex                      mutex;
    std::map<uintptr_t, Allocation> all; // by address
};

Allocations & allocations() {
    static auto * only = new Allocations;
    return *only;
}

// map_memory leaves a page without access behind the memory.
void * map_memory(size_t size) {
    void * base = mmap(nullptr, size + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || mprotect(base, size, PROT_READ | PROT_WRITE) != 0) {
        perror("fakegpu: mmap");
        abort();
    }
    return base;
}

void * allocate(int device, size_t bytes) {
    const size_t size = (bytes + page - 1) / page * page;
    if (device >= 0 && !take_memory(device, size)) {
        return nullptr;
    }
    void * base = map_memory(size);
    memset(base, 0xFF, size);
    std::lock_guard<std::mutex> lock(allocations().mutex);
    allocations().all[(uintptr_t) base] = {device, size};
    return base;
}

void release(void * base) {
    std::unique_lock<std::mutex> lock(allocations().mutex);
    const auto at = allocations().all.find((uintptr_t) base);
    if (at == allocations().all.end()) {
        fprintf(stderr, "fakegpu: free of memory that is not there\n");
        abort();
    }
    const Allocation a = at->second;
    allocations().all.erase(at);
    lock.unlock();
    munmap(base, a.size + page);
    if (a.device >= 0) {
        give_memory(a.device, a.size);
    }
}

}  // namespace

void * device_malloc(int device, size_t bytes) {
    return allocate(device, bytes);
}

void device_free(void * base) {
    wait_for_all_streams();
    release(base);
}

void * pinned_malloc(size_t bytes) {
    return allocate(-1, bytes);
}

void pinned_free(void * base) {
    wait_for_all_streams();
    release(base);
}

bool is_pinned(const void * address) {
    std::lock_guard<std::mutex> lock(allocations().mutex);
    auto at = allocations().all.upper_bound((uintptr_t) address);
    if (at == allocations().all.begin()) {
        return false;
    }
    --at;
    return at->second.device < 0 && (uintptr_t) address - at->first < at->second.size;
}

}  // namespace fakegpu
