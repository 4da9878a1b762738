// A pool: its limit, its accounts and its buffers.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kvc.h"
#include "pool/backing.h"
#include "pool/handles.h"
#include "shm/segment.h"

namespace kvc {

struct Buffer;

struct Pool {
    unsigned generation = fork_generation();

    std::mutex mutex; // guards all that follows, the backing and the buffers' contents
    bool       closed = false;
    std::unique_ptr<Backing> backing;
    size_t     va = 0, limit = 0, reserve = 0; // bytes
    size_t     reserved  = 0;                  // granules of all buffers
    size_t     committed = 0;                  // granules
    size_t     peak      = 0;                  // granules
    size_t     buffers   = 0;
    kvc_stats_t counts{};                      // the counters among them alone
    std::vector<Span> runs;                    // of the commit that is running

    // Guards the segment. Taken before mutex where both are needed; polls only try it.
    std::mutex segment_mutex;
    std::unique_ptr<Segment> segment;
};

struct Buffer {
    unsigned generation = fork_generation();
    std::shared_ptr<Pool> pool;
    void * base = nullptr;  // never changes
    size_t size = 0;        // bytes asked for; never changes

    std::unique_ptr<Region> region;   // null once freed
    std::vector<uint8_t> committed;   // 1 for each committed granule
    size_t n_committed = 0;
    bool   broken = false;            // freeing failed, and only freeing is left
};

HandleTable<kvc_pool, Pool> & pools();
HandleTable<kvc_buffer, Buffer> & buffers();

// pool_create makes a pool over a backing, which tests give themselves.
int pool_create(std::unique_ptr<Backing> backing, size_t va, const kvc_options_t & options, kvc_pool_t ** out);
int pool_destroy(kvc_pool_t * handle);
int pool_stats(Pool & pool, kvc_stats_t * out);

// resize sets the limit as kvc_pool_resize does.
int resize(Pool & pool, size_t limit);

int buffer_alloc(const std::shared_ptr<Pool> & pool, size_t size, kvc_buffer_t ** out);
int buffer_free(kvc_buffer_t * handle);
int buffer_commit(Buffer & b, size_t offset, size_t size);
int buffer_uncommit(Buffer & b, size_t offset, size_t size);
int buffer_committed(Buffer & b, size_t offset, size_t size);
int buffer_disturbs(Buffer & b, size_t offset, size_t size);

}  // namespace kvc
