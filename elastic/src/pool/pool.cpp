#include "pool/pool.h"

#include <algorithm>

#include "pool/error.h"

namespace kvc {

HandleTable<kvc_pool, Pool> & pools() {
    static auto * table = new HandleTable<kvc_pool, Pool>;
    return *table;
}

HandleTable<kvc_buffer, Buffer> & buffers() {
    static auto * table = new HandleTable<kvc_buffer, Buffer>;
    return *table;
}

int pool_create(std::unique_ptr<Backing> backing, size_t va, const kvc_options_t & options, kvc_pool_t ** out) {
    auto pool     = std::make_shared<Pool>();
    pool->backing = std::move(backing);
    pool->va      = va;
    pool->limit   = options.limit_bytes == 0 ? va : std::min(options.limit_bytes, va);
    pool->reserve = std::min(options.reserve_bytes, va);
    *out = pools().add(pool);
    return KVC_OK;
}

int pool_destroy(kvc_pool_t * handle) {
    const auto pool = pools().find(handle);
    if (pool == nullptr) {
        return fail(KVC_E_INVALID, "destroying a pool: %p is not a pool of this process", (void *) handle);
    }
    std::lock_guard<std::mutex> polling(pool->segment_mutex);
    {
        std::lock_guard<std::mutex> lock(pool->mutex);
        if (pool->backing == nullptr) {
            return fail(KVC_E_INVALID, "destroying a pool: another thread has destroyed it");
        }
        if (pool->buffers > 0) {
            return fail(KVC_E_BUSY, "destroying a pool: it has %zu buffers; free them first", pool->buffers);
        }
        pool->closed = true;
        const int rc = pool->backing->close();
        if (rc != KVC_OK) {
            return rc;
        }
        pool->backing.reset();
    }
    pool->segment.reset();
    pools().remove(handle);
    return KVC_OK;
}

int resize(Pool & pool, size_t limit) {
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (pool.closed) {
        return fail(KVC_E_INVALID, "setting a limit of %zu bytes: the pool is destroyed", limit);
    }
    pool.limit = std::min(limit, pool.va);
    const size_t granule = pool.backing->granule;
    const size_t room    = pool.limit / granule; // granules
    const size_t for_kept = room > pool.committed ? room - pool.committed : 0;
    const size_t kept     = pool.backing->kept();
    if (kept > for_kept) {
        const int rc = pool.backing->trim(kept - for_kept, nullptr, {0, 0});
        if (rc != KVC_OK) {
            return rc;
        }
    }
    if (pool.committed > room) {
        return fail(KVC_E_OVER, "setting a limit of %zu bytes: %zu bytes are committed; the limit is in force, "
                    "and commits fail until %zu bytes were uncommitted",
                    pool.limit, pool.committed * granule, pool.committed * granule - pool.limit);
    }
    return KVC_OK;
}

int pool_stats(Pool & pool, kvc_stats_t * out) {
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (pool.closed) {
        return fail(KVC_E_INVALID, "reading a pool's statistics: the pool is destroyed");
    }
    const size_t granule = pool.backing->granule;
    *out = pool.counts;
    out->granule_bytes   = granule;
    out->va_bytes        = pool.va;
    out->reserved_bytes  = pool.reserved * granule;
    out->limit_bytes     = pool.limit;
    out->committed_bytes = pool.committed * granule;
    out->peak_bytes      = pool.peak * granule;
    out->prealloc_bytes  = pool.backing->kept() * granule;
    out->reserve_bytes   = pool.reserve;
    out->buffers         = pool.buffers;
    return KVC_OK;
}

}  // namespace kvc
