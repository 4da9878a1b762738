// The functions of kvc.h: arguments are checked, handles become objects, exceptions end.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "cpu/backing.h"
#include "cuda/backing.h"
#include "pool/error.h"
#include "pool/pool.h"
#include "shm/life.h"

namespace {

using kvc::fail;

template <class F>
int guarded(const char * doing, F f) noexcept {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        return fail(KVC_E_NO_MEMORY, "%s: no memory for the library's own tables", doing);
    } catch (const std::exception & e) {
        return fail(KVC_E_SYSTEM, "%s: %s", doing, e.what());
    }
}

template <class F>
int with_pool(const char * doing, kvc_pool_t * handle, F f) noexcept {
    return guarded(doing, [&] {
        const auto pool = kvc::pools().find(handle);
        return pool != nullptr ? f(pool)
                               : fail(KVC_E_INVALID, "%s: %p is not a pool of this process; was it destroyed?", doing, (void *) handle);
    });
}

template <class F>
int with_buffer(const char * doing, kvc_buffer_t * handle, F f) noexcept {
    return guarded(doing, [&] {
        const auto b = kvc::buffers().find(handle);
        return b != nullptr ? f(*b)
                            : fail(KVC_E_INVALID, "%s: %p is not a buffer of this process; was it freed?", doing, (void *) handle);
    });
}

int create(size_t va, int device, const kvc_options_t & options, kvc_pool_t ** out) {
    if (va == 0) {
        return fail(KVC_E_INVALID, "creating a pool: its address space has 0 bytes; it needs one granule at least");
    }
    if ((options.flags & ~(KVC_NO_POPULATE | KVC_HUGE_PAGES | KVC_BARE | KVC_BARE_END)) != 0) {
        return fail(KVC_E_INVALID, "creating a pool: the flags 0x%x are not all known", options.flags);
    }
    std::unique_ptr<kvc::Backing> backing;
    const int rc = device == KVC_CPU ? kvc::cpu_backing(options, kvc::real_system(), backing)
                                     : kvc::cuda_backing(device, options, backing);
    if (rc != KVC_OK) {
        return rc;
    }
    if (va < backing->granule) {
        const size_t granule = backing->granule;
        backing->close();
        return fail(KVC_E_INVALID, "creating a pool of %zu bytes: a granule has %zu", va, granule);
    }
    return kvc::pool_create(std::move(backing), va, options, out);
}

}  // namespace

int kvc_pool_create(size_t va_bytes, int device, kvc_pool_t ** out) {
    return kvc_pool_create_ex(va_bytes, device, nullptr, out);
}

int kvc_pool_create_ex(size_t va_bytes, int device, const kvc_options_t * options, kvc_pool_t ** out) {
    if (out == nullptr) {
        return fail(KVC_E_INVALID, "creating a pool: there is no place for its handle");
    }
    *out = nullptr;
    return guarded("creating a pool", [&] { return create(va_bytes, device, options != nullptr ? *options : kvc_options_t{}, out); });
}

int kvc_pool_destroy(kvc_pool_t * pool) {
    return guarded("destroying a pool", [&] { return kvc::pool_destroy(pool); });
}

int kvc_pool_resize(kvc_pool_t * pool, size_t new_limit_bytes) {
    return with_pool("setting a limit", pool, [&](auto & p) { return kvc::resize(*p, new_limit_bytes); });
}

int kvc_pool_stats(kvc_pool_t * pool, kvc_stats_t * out) {
    if (out == nullptr) {
        return fail(KVC_E_INVALID, "reading a pool's statistics: there is no place for them");
    }
    *out = {};
    return with_pool("reading a pool's statistics", pool, [&](auto & p) { return kvc::pool_stats(*p, out); });
}

int kvc_pool_memory(kvc_pool_t * pool, uint64_t * free_bytes, uint64_t * total_bytes) {
    if (free_bytes == nullptr || total_bytes == nullptr) {
        return fail(KVC_E_INVALID, "asking for free memory: there is no place for the answer");
    }
    *free_bytes = *total_bytes = 0;
    return with_pool("asking for free memory", pool, [&](auto & p) {
        std::lock_guard<std::mutex> lock(p->mutex);
        return p->closed ? fail(KVC_E_INVALID, "asking for free memory: the pool is destroyed")
                         : p->backing->memory(free_bytes, total_bytes);
    });
}

int kvc_buffer_alloc(kvc_pool_t * pool, size_t size, kvc_buffer_t ** out) {
    if (out == nullptr) {
        return fail(KVC_E_INVALID, "allocating a buffer of %zu bytes: there is no place for its handle", size);
    }
    *out = nullptr;
    return with_pool("allocating a buffer", pool, [&](auto & p) { return kvc::buffer_alloc(p, size, out); });
}

void * kvc_buffer_get_base(kvc_buffer_t * buf) {
    void * base = nullptr;
    with_buffer("asking for a buffer's base", buf, [&](kvc::Buffer & b) {
        base = b.base;
        return KVC_OK;
    });
    return base;
}

int kvc_buffer_commit(kvc_buffer_t * buf, size_t offset, size_t size) {
    return with_buffer("committing", buf, [&](kvc::Buffer & b) { return kvc::buffer_commit(b, offset, size); });
}

int kvc_buffer_uncommit(kvc_buffer_t * buf, size_t offset, size_t size) {
    return with_buffer("uncommitting", buf, [&](kvc::Buffer & b) { return kvc::buffer_uncommit(b, offset, size); });
}

int kvc_buffer_committed(kvc_buffer_t * buf, size_t offset, size_t size) {
    return with_buffer("looking at a buffer", buf, [&](kvc::Buffer & b) { return kvc::buffer_committed(b, offset, size); });
}

int kvc_buffer_disturbs(kvc_buffer_t * buf, size_t offset, size_t size) {
    return with_buffer("looking at a buffer", buf, [&](kvc::Buffer & b) { return kvc::buffer_disturbs(b, offset, size); });
}

int kvc_buffer_free(kvc_buffer_t * buf) {
    return guarded("freeing a buffer", [&] { return kvc::buffer_free(buf); });
}

int kvc_pool_attach_shm(kvc_pool_t * pool, const char * name) {
    return with_pool("attaching a segment", pool, [&](auto & p) { return kvc::attach(*p, name); });
}

int kvc_pool_poll_shm(kvc_pool_t * pool) {
    return with_pool("polling a segment", pool, [&](auto & p) { return kvc::poll(*p); });
}

int kvc_pool_tell_shm(kvc_pool_t * pool, uint64_t promised_bytes, uint64_t lacking_bytes, uint64_t spare_bytes) {
    const auto bytes = [](uint64_t n) { return int64_t(std::min(n, uint64_t(KVC_LIMIT_MAX))); };
    return with_pool("telling what a pool lacks", pool,
                     [&](auto & p) { return kvc::tell(*p, bytes(promised_bytes), bytes(lacking_bytes), bytes(spare_bytes)); });
}

int kvc_shm_reap(const char * prefix, int * removed) {
    int count = 0;
    const int rc = guarded("removing left segments", [&] { return kvc::reap(prefix, &count); });
    if (removed != nullptr) {
        *removed = count;
    }
    return rc;
}
