// Buffers: addresses taken and given back.
#include <algorithm>

#include "pool/error.h"
#include "pool/pool.h"

namespace kvc {

namespace {

// reserve_locked takes addresses and counts them. REQUIRES: pool.mutex.
int reserve_locked(Pool & pool, size_t size, Buffer & b) {
    const size_t granule  = pool.backing->granule;
    const size_t granules = size / granule + (size % granule != 0);
    if (granules > KVC_GRANULES_MAX) {
        return fail(KVC_E_INVALID, "allocating a buffer of %zu bytes: it has %zu granules of %zu bytes, and %u are the most; "
                    "take larger granules", size, granules, granule, KVC_GRANULES_MAX);
    }
    if (granules > pool.va / granule - std::min(pool.reserved, pool.va / granule)) {
        return fail(KVC_E_LIMIT, "allocating a buffer of %zu bytes: buffers have %zu of the pool's %zu bytes of address space; "
                    "make the pool larger", size, pool.reserved * granule, pool.va);
    }
    b.committed.assign(granules, 0);
    const int rc = pool.backing->reserve(granules, b.region);
    if (rc != KVC_OK) {
        return rc;
    }
    b.base = b.region->base;
    b.size = size;
    pool.reserved += granules;
    pool.buffers++;
    return KVC_OK;
}

// free_locked gives a buffer's memory and addresses back. REQUIRES: pool.mutex.
int free_locked(Pool & pool, Buffer & b) {
    b.broken = true;
    const int rc = pool.backing->release(*b.region);
    if (rc != KVC_OK) {
        return rc;
    }
    pool.reserved  -= b.region->granules;
    pool.committed -= b.n_committed;
    pool.buffers--;
    b.n_committed = 0;
    b.region.reset();
    return KVC_OK;
}

}  // namespace

int buffer_alloc(const std::shared_ptr<Pool> & pool, size_t size, kvc_buffer_t ** out) {
    if (size == 0) {
        return fail(KVC_E_INVALID, "allocating a buffer of 0 bytes: a buffer has one byte at least");
    }
    auto b  = std::make_shared<Buffer>();
    b->pool = pool;
    std::lock_guard<std::mutex> lock(pool->mutex);
    if (pool->closed) {
        return fail(KVC_E_INVALID, "allocating a buffer of %zu bytes: the pool is destroyed", size);
    }
    const int rc = reserve_locked(*pool, size, *b);
    if (rc != KVC_OK) {
        return rc;
    }
    try {
        *out = buffers().add(b);
    } catch (...) {
        free_locked(*pool, *b);
        throw;
    }
    return KVC_OK;
}

int buffer_free(kvc_buffer_t * handle) {
    const auto b = buffers().find(handle);
    if (b == nullptr) {
        return fail(KVC_E_INVALID, "freeing a buffer: %p is not a buffer of this process; was it freed before?", (void *) handle);
    }
    {
        std::lock_guard<std::mutex> lock(b->pool->mutex);
        if (b->region == nullptr) {
            return fail(KVC_E_INVALID, "freeing a buffer of %zu bytes: another thread has freed it", b->size);
        }
        const int rc = free_locked(*b->pool, *b);
        if (rc != KVC_OK) {
            return rc;
        }
    }
    buffers().remove(handle);
    return KVC_OK;
}

}  // namespace kvc
