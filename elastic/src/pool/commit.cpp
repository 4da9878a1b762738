// Committing and uncommitting ranges of a buffer.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "pool/error.h"
#include "pool/pool.h"

namespace kvc {

namespace {

uint64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A Charge adds the time of its scope to a counter.
struct Charge {
    uint64_t & to;
    uint64_t   begin = now_ns();
    ~Charge() { to += now_ns() - begin; }
};

// check refuses a buffer that is gone and a range outside it. REQUIRES: the pool's mutex.
int check_locked(const Buffer & b, const char * doing, size_t offset, size_t size) {
    if (b.region == nullptr || b.broken) {
        return fail(KVC_E_INVALID, "%s %zu bytes at %zu: the buffer is freed", doing, size, offset);
    }
    if (offset > b.size || size > b.size - offset) {
        return fail(KVC_E_INVALID, "%s %zu bytes at %zu: the buffer has %zu bytes", doing, size, offset, b.size);
    }
    return KVC_OK;
}

// touched are the granules that a range touches.
Span touched(const Buffer & b, size_t offset, size_t size) {
    const size_t granule = b.pool->backing->granule;
    if (size == 0) {
        return {offset / granule, 0};
    }
    const size_t first = offset / granule;
    return {first, (offset + size - 1) / granule - first + 1};
}

// inside are the granules that lie wholly in a range. Behind the end of the buffer nothing
// is missing.
Span inside(const Buffer & b, size_t offset, size_t size) {
    const size_t granule = b.pool->backing->granule;
    const size_t first   = offset / granule + (offset % granule != 0);
    const size_t end     = offset + size == b.size ? b.region->granules : (offset + size) / granule;
    return {first, end > first && size > 0 ? end - first : 0};
}

// next_run finds the first run of granules in state `committed` from `from` on; count is 0
// where there is none.
Span next_run(const Buffer & b, size_t from, size_t end, uint8_t committed) {
    const uint8_t * state = b.committed.data();
    const void * at = from < end ? memchr(state + from, committed, end - from) : nullptr;
    if (at == nullptr) {
        return {end, 0};
    }
    const size_t first = (const uint8_t *) at - state;
    const void * stop  = memchr(state + first, !committed, end - first);
    return {first, (stop == nullptr ? end : size_t((const uint8_t *) stop - state)) - first};
}

void set_committed(Buffer & b, Span span, uint8_t committed) {
    memset(b.committed.data() + span.first, committed, span.count);
    if (committed != 0) {
        b.n_committed       += span.count;
        b.pool->committed   += span.count;
    } else {
        b.n_committed       -= span.count;
        b.pool->committed   -= span.count;
    }
}

// make_room_locked checks the limit, and gives up prealloc that these runs cannot use. runs
// are the uncommitted granules of `range`.
int make_room_locked(Pool & pool, Buffer & b, Span range, size_t wanted, size_t offset, size_t size) {
    const size_t granule = pool.backing->granule;
    const size_t room    = pool.limit / granule; // granules
    if (pool.committed + wanted > room) {
        pool.counts.refused++;
        return fail(KVC_E_LIMIT, "committing %zu bytes at %zu: %zu granules of %zu bytes do not fit beside %zu committed bytes "
                    "under the limit of %zu; uncommit memory or raise the limit",
                    size, offset, wanted, granule, pool.committed * granule, pool.limit);
    }
    const size_t kept   = pool.backing->kept();
    const size_t reused = pool.backing->reusable(*b.region, pool.runs);
    const size_t after  = pool.committed + wanted + (kept - reused);
    return after > room ? pool.backing->trim(after - room, b.region.get(), range) : KVC_OK;
}

// map_runs_locked maps all runs or none.
int map_runs_locked(Pool & pool, Buffer & b) {
    size_t reused_all = 0;
    for (size_t i = 0; i < pool.runs.size(); i++) {
        size_t reused = 0;
        const int rc  = pool.backing->map(*b.region, pool.runs[i], &reused);
        if (rc == KVC_OK) {
            set_committed(b, pool.runs[i], 1);
            reused_all += reused;
            continue;
        }
        // Memory that came from prealloc goes back to prealloc.
        while (i-- > 0) {
            size_t done = 0;
            if (pool.backing->unmap(*b.region, pool.runs[i], reused_all, &done) != KVC_OK) {
                fail_more(rc, "; the granules that were already committed could not be given back");
            }
            set_committed(b, {pool.runs[i].first, done}, 0);
            reused_all -= std::min(reused_all, done);
        }
        pool.counts.failed++;
        return rc;
    }
    pool.counts.reused_granules += reused_all;
    return KVC_OK;
}

// unmap_runs_locked uncommits the committed granules of a range; *done is their number. Goes
// on after a failure that left no granule committed.
int unmap_runs_locked(Pool & pool, Buffer & b, Span range, size_t * done) {
    const size_t end     = range.first + range.count;
    const size_t granule = pool.backing->granule;
    int rc = KVC_OK;
    for (Span run = next_run(b, range.first, end, 1); run.count > 0; run = next_run(b, run.first + run.count, end, 1)) {
        // Prealloc is limited by the reserve, and by the limit once this run is uncommitted.
        const size_t kept = pool.backing->kept();
        const size_t room = pool.limit / granule;
        const size_t used = pool.committed - run.count + kept;
        const size_t by_reserve = pool.reserve / granule > kept ? pool.reserve / granule - kept : 0;
        const size_t by_limit   = room > used ? room - used : 0;
        size_t this_done = 0;
        const int this_rc = pool.backing->unmap(*b.region, run, std::min(by_reserve, by_limit), &this_done);
        set_committed(b, {run.first, this_done}, 0);
        *done += this_done;
        rc = this_rc != KVC_OK ? this_rc : rc;
        if (this_done < run.count) {
            break;
        }
    }
    return rc;
}

}  // namespace

int buffer_commit(Buffer & b, size_t offset, size_t size) {
    Pool & pool = *b.pool;
    std::lock_guard<std::mutex> lock(pool.mutex);
    int rc = check_locked(b, "committing", offset, size);
    if (rc != KVC_OK) {
        return rc;
    }
    const Span range = touched(b, offset, size);
    const size_t end = range.first + range.count;
    pool.runs.clear();
    size_t wanted = 0;
    for (Span run = next_run(b, range.first, end, 0); run.count > 0; run = next_run(b, run.first + run.count, end, 0)) {
        pool.runs.push_back(run);
        wanted += run.count;
    }
    if (wanted == 0) {
        return KVC_OK;
    }
    Charge time{pool.counts.commit_ns};
    rc = make_room_locked(pool, b, range, wanted, offset, size);
    if (rc == KVC_OK) {
        rc = map_runs_locked(pool, b);
    }
    if (rc == KVC_OK) {
        pool.counts.commits++;
        pool.counts.commit_granules += wanted;
        pool.peak = std::max(pool.peak, pool.committed);
    }
    return rc;
}

int buffer_uncommit(Buffer & b, size_t offset, size_t size) {
    Pool & pool = *b.pool;
    std::lock_guard<std::mutex> lock(pool.mutex);
    int rc = check_locked(b, "uncommitting", offset, size);
    if (rc != KVC_OK) {
        return rc;
    }
    const Span range = inside(b, offset, size);
    if (range.count == 0) {
        return KVC_OK;
    }
    Charge time{pool.counts.uncommit_ns};
    size_t done = 0;
    rc = unmap_runs_locked(pool, b, range, &done);
    pool.counts.uncommits += done > 0;
    pool.counts.uncommit_granules += done;
    // Between those that were committed, stray writes may have left memory.
    if (rc == KVC_OK && done < range.count) {
        rc = pool.backing->sweep(*b.region, range);
    }
    pool.counts.failed += rc != KVC_OK;
    return rc;
}

int buffer_committed(Buffer & b, size_t offset, size_t size) {
    std::lock_guard<std::mutex> lock(b.pool->mutex);
    const int rc = check_locked(b, "looking at", offset, size);
    if (rc != KVC_OK) {
        return rc;
    }
    const Span range = touched(b, offset, size);
    return next_run(b, range.first, range.first + range.count, 0).count == 0 ? 1 : 0;
}

int buffer_disturbs(Buffer & b, size_t offset, size_t size) {
    std::lock_guard<std::mutex> lock(b.pool->mutex);
    const int rc = check_locked(b, "looking at", offset, size);
    if (rc != KVC_OK) {
        return rc;
    }
    const Span range = touched(b, offset, size);
    const Span run   = next_run(b, range.first, range.first + range.count, 0);
    return run.count > 0 && b.pool->backing->disturbs(*b.region, run.first) ? 1 : 0;
}

}  // namespace kvc
