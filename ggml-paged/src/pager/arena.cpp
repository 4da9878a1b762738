// The memory of the frames.
#include <cerrno>

#include <sys/mman.h>
#include <sys/prctl.h>

#include "pager/pager.h"
#include "pager/state.h"

namespace kvp {

namespace {

// A direct read hands the disk one address per physically contiguous piece of memory. Over
// pages of 4 KiB a frame is hundreds of them, which costs a virtual disk more than half of
// its rate (1.4 to 2.3 GB/s where huge pages gave 3.8); attention has fewer TLB misses too.
constexpr size_t HUGE_PAGE = 2 * 1024 * 1024;

// With small frames, a free frame would not go back to the system before its neighbours
// are free.
constexpr size_t SMALL_FRAME = 256 * 1024;

// Names a mapping in /proc/PID/maps, on kernels that can. Headers before Linux 5.17 lack the numbers.
void name_mapping(void * at, size_t bytes) {
    constexpr int SET_VMA = 0x53564d41, SET_VMA_ANON_NAME = 0;
    prctl(SET_VMA, SET_VMA_ANON_NAME, at, bytes, "kvtier: paged arena");
}

uint8_t * map_aligned(size_t bytes) {
    const size_t room = bytes + HUGE_PAGE;
    void * at = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    auto * start = static_cast<uint8_t *>(at);
    const size_t before = (HUGE_PAGE - uintptr_t(start) % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0) {
        munmap(start, before);
    }
    if (before < HUGE_PAGE) {
        munmap(start + before + bytes, HUGE_PAGE - before);
    }
    name_mapping(start + before, bytes);
    return start + before;
}

}  // namespace

int map_arena(kvp_pager & p, size_t bytes) {
    if (p.config.arena_alloc != nullptr) {
        p.arena = static_cast<uint8_t *>(p.config.arena_alloc(p.config.arena_user, bytes));
    } else {
        p.arena = map_aligned(bytes);
    }
    if (p.arena == nullptr) {
        return kvp_set_error(-ENOMEM, "%zu MiB for K/V pages cannot be had from the system: allow less memory", bytes >> 20);
    }
    if (uintptr_t(p.arena) % KVP_ALIGN != 0) {
        return kvp_set_error(-EINVAL, "arena_alloc gave memory that is not aligned to %u bytes", KVP_ALIGN);
    }
    if (p.config.arena_alloc == nullptr && p.frame_bytes >= SMALL_FRAME) {
        // Systems without huge pages use small pages.
        madvise(p.arena, bytes, MADV_HUGEPAGE);
    }
    return 0;
}

void unmap_arena(kvp_pager & p) {
    const size_t bytes = p.frames.size() * p.frame_bytes;
    if (p.arena == nullptr) {
        return;
    }
    if (p.config.arena_alloc != nullptr) {
        p.config.arena_free(p.config.arena_user, p.arena, bytes);
    } else {
        munmap(p.arena, bytes);
    }
    p.arena = nullptr;
}

}  // namespace kvp
