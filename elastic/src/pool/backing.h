// The memory behind a pool: host memory, or that of a CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvc {

// A Span is count granules of a region from first on.
struct Span {
    size_t first, count;
};

// A Region is the addresses of one buffer. Each backing derives its own.
struct Region {
    virtual ~Region() = default;
    void * base     = nullptr;
    size_t granules = 0;
};

// A Backing knows mappings alone; the pool decides which granules are mapped, and counts. The
// pool calls under its lock. Functions return KVC_OK or a code, with a sentence noted.
class Backing {
public:
    explicit Backing(size_t granule) : granule(granule) {}
    virtual ~Backing() = default;

    const size_t granule; // bytes

    // close gives up kept memory and everything that is not a region. May be repeated after
    // a failure.
    virtual int close() = 0;

    // reserve makes a region without memory.
    virtual int reserve(size_t granules, std::unique_ptr<Region> & out) = 0;

    // release gives a region's memory and addresses back, kept granules included. May be
    // repeated after a failure, and nothing else may be done with the region then.
    virtual int release(Region & region) = 0;

    // map gives each granule of a span, all of which are uncommitted, memory that reads as
    // zeros. All or nothing. Kept memory is used first; *reused is its number of granules.
    virtual int map(Region & region, Span span, size_t * reused) = 0;

    // disturbs reports whether mapping an uncommitted granule changes the mapping of one that may be
    // touched while it is uncommitted.
    virtual bool disturbs(const Region &, size_t) const { return false; }

    // unmap takes the memory of committed granules in ascending order, and keeps that of the
    // first `keep` of them where it can. The first *done are uncommitted afterwards, also
    // after a failure.
    virtual int unmap(Region & region, Span span, size_t keep, size_t * done) = 0;

    // sweep drops memory that writes to uncommitted granules left in a span. Kept granules stay.
    virtual int sweep(Region &, Span) { return 0; }

    // kept is the number of granules whose memory is kept.
    virtual size_t kept() const = 0;

    // reusable is the number of kept granules that map would use for these spans.
    virtual size_t reusable(const Region & region, const std::vector<Span> & spans) const = 0;

    // trim gives count kept granules back to the system, and spares those that map would use
    // for a span of a region, which may be null. Changes nothing that a kernel can see.
    virtual int trim(size_t count, const Region * region, Span spared) = 0;

    // memory is the free and the total memory of the device or the system, in bytes.
    virtual int memory(uint64_t * free_bytes, uint64_t * total_bytes) = 0;
};

}  // namespace kvc
