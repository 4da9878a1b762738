// Memory for the pager's arena inside a block that is aligned to less: its base is aligned, and the
// block's own start stands before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kv_pager.h"

namespace kvp_gpu {

// arena_block_bytes is the size of the block for an arena.
inline size_t arena_block_bytes(size_t bytes) { return bytes + sizeof(void *) + KVP_ALIGN - 1; }

// arena_block is the arena's base in a block.
inline void * arena_block(void * start) {
    const uintptr_t base = (uintptr_t(start) + sizeof(void *) + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
    memcpy(reinterpret_cast<void *>(base - sizeof(void *)), &start, sizeof start);
    return reinterpret_cast<void *>(base);
}

// arena_block_start is the block of an arena.
inline void * arena_block_start(void * base) {
    void * start;
    memcpy(&start, static_cast<char *>(base) - sizeof(void *), sizeof start);
    return start;
}

}  // namespace kvp_gpu
