// One round of a pool with its segment.
#include <algorithm>

#include "kvc.h"
#include "pool/error.h"
#include "pool/pool.h"
#include "shm/segment.h"

namespace kvc {

namespace {

SegmentFields fields_of(const kvc_stats_t & s) {
    return {int64_t(s.limit_bytes), int64_t(s.committed_bytes), int64_t(s.prealloc_bytes)};
}

// apply sets the limit that a tool asked for.
int apply(Pool & pool, const std::string & name, int64_t total, const kvc_stats_t & now) {
    if (total < int64_t(now.granule_bytes) || total > KVC_LIMIT_MAX) {
        return fail(KVC_E_INVALID, "applying the limit of the segment %s: %lld bytes are not between %llu, one granule, and %lld; "
                    "the limit stays %llu bytes", name.c_str(), (long long) total, (unsigned long long) now.granule_bytes,
                    (long long) KVC_LIMIT_MAX, (unsigned long long) now.limit_bytes);
    }
    const int rc = resize(pool, size_t(total));
    return rc == KVC_E_OVER ? KVC_OK : rc;
}

}  // namespace

int attach(Pool & pool, const char * given) {
    std::string name;
    int rc = segment_name(given, name);
    if (rc != KVC_OK) {
        return rc;
    }
    std::lock_guard<std::mutex> lock(pool.segment_mutex);
    if (pool.segment != nullptr) {
        return fail(KVC_E_BUSY, "attaching the segment %s: the pool has the segment %s", name.c_str(), pool.segment->name().c_str());
    }
    kvc_stats_t now;
    if ((rc = pool_stats(pool, &now)) != KVC_OK) {
        return rc;
    }
    auto segment = std::make_unique<Segment>();
    if ((rc = segment->attach(name, fields_of(now))) == KVC_OK) {
        pool.segment = std::move(segment);
    }
    return rc;
}

int poll(Pool & pool) {
    std::unique_lock<std::mutex> lock(pool.segment_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return fail(KVC_E_BUSY, "polling a segment: another thread is at it");
    }
    if (pool.segment == nullptr) {
        return fail(KVC_E_INVALID, "polling a segment: the pool has none; attach one first");
    }
    kvc_stats_t now;
    int rc = pool_stats(pool, &now);
    if (rc != KVC_OK) {
        return rc;
    }
    Segment::Round round;
    if ((rc = pool.segment->keep()) != KVC_OK || (rc = round.begin(pool.segment->name())) != KVC_OK) {
        return rc;
    }
    int applied = KVC_OK;
    if (!round.fresh && round.fields.total != pool.segment->known_total) {
        applied = apply(pool, pool.segment->name(), round.fields.total, now);
    }
    if ((rc = pool_stats(pool, &now)) != KVC_OK) {
        return rc;
    }
    if ((rc = round.write(fields_of(now))) == KVC_OK) {
        pool.segment->known_total = round.fields.total;
        pool.segment->told.limit = int64_t(now.limit_bytes);
        rc = pool.segment->tell(pool.segment->told);
    }
    return applied != KVC_OK ? applied : rc;
}

int tell(Pool & pool, int64_t promised, int64_t lacking, int64_t spare) {
    std::lock_guard<std::mutex> lock(pool.segment_mutex);
    if (pool.segment == nullptr) {
        return fail(KVC_E_INVALID, "telling what a pool lacks: it has no segment; attach one first");
    }
    Told & told   = pool.segment->told;
    told.promised = promised;
    told.lacking  = lacking;
    told.spare    = spare;
    return KVC_OK;
}

}  // namespace kvc
