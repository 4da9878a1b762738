#include "cpu/backing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "pool/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvc {

namespace {

struct HostRegion : Region {
    std::vector<uint8_t> kept; // 1 for each granule whose memory is kept
    size_t n_kept = 0;
};

class HostBacking : public Backing {
public:
    HostBacking(size_t granule, uint32_t flags, const System & system)
        : Backing(granule), system_(system), populate_((flags & KVC_NO_POPULATE) == 0), huge_((flags & KVC_HUGE_PAGES) != 0) {}

    int close() override { return KVC_OK; }
    int reserve(size_t granules, std::unique_ptr<Region> & out) override;
    int release(Region & region) override;
    int map(Region & region, Span span, size_t * reused) override;
    int unmap(Region & region, Span span, size_t keep, size_t * done) override;
    int sweep(Region & region, Span span) override;
    size_t kept() const override { return kept_; }
    size_t reusable(const Region & region, const std::vector<Span> & spans) const override;
    int trim(size_t count, const Region * region, Span spared) override;
    int memory(uint64_t * free_bytes, uint64_t * total_bytes) override;

private:
    uint8_t * at(const Region & r, size_t granule_index) const { return (uint8_t *) r.base + granule_index * granule; }
    int advise(const Region & r, Span span, int advice) const;
    int drop(const Region & r, Span span) const;
    int populate(const Region & r, Span span);
    int trim_region(HostRegion & r, size_t & count, Span spared);
    void set_kept(HostRegion & r, Span span, uint8_t kept);

    const System & system_;
    bool       populate_;
    const bool huge_;
    size_t     kept_ = 0; // granules of all regions
    std::vector<HostRegion *> regions_;
};

// next_equal is the first run of granules of a span with one value of kept.
Span next_equal(const HostRegion & r, size_t from, size_t end) {
    const void * stop = memchr(r.kept.data() + from, !r.kept[from], end - from);
    return {from, (stop == nullptr ? end : size_t((const uint8_t *) stop - r.kept.data())) - from};
}

int HostBacking::reserve(size_t granules, std::unique_ptr<Region> & out) {
    auto r = std::make_unique<HostRegion>();
    r->kept.assign(granules, 0);
    r->granules = granules;
    regions_.reserve(regions_.size() + 1);
    const size_t bytes = granules * granule;
    void * base = system_.map(bytes);
    if (base == MAP_FAILED) {
        return fail(errno == ENOMEM ? KVC_E_NO_MEMORY : KVC_E_SYSTEM, "reserving %zu bytes of addresses: %s; a limit of address "
                    "space (ulimit -v) or vm.overcommit_memory=2 forbids it", bytes, strerror(errno));
    }
    r->base = base;
    if (!huge_) {
        // Kernels without huge pages refuse, and need nothing.
        (void) system_.advise(base, bytes, MADV_NOHUGEPAGE);
    }
    regions_.push_back(r.get());
    out = std::move(r);
    return KVC_OK;
}

int HostBacking::release(Region & region) {
    auto & r = static_cast<HostRegion &>(region);
    if (system_.unmap(r.base, r.granules * granule) != 0) {
        return fail(KVC_E_SYSTEM, "giving back %zu bytes of addresses at %p: %s", r.granules * granule, r.base, strerror(errno));
    }
    kept_ -= r.n_kept;
    regions_.erase(std::find(regions_.begin(), regions_.end(), &r));
    return KVC_OK;
}

// advise repeats an advice that the kernel broke off; 0 or an errno.
int HostBacking::advise(const Region & r, Span span, int advice) const {
    for (int tries = 0;; tries++) {
        if (system_.advise(at(r, span.first), span.count * granule, advice) == 0) {
            return 0;
        }
        if ((errno != EINTR && errno != EAGAIN) || tries == 100) {
            return errno;
        }
    }
}

int HostBacking::drop(const Region & r, Span span) const {
    const int err = advise(r, span, MADV_DONTNEED);
    return err == 0 ? KVC_OK : fail(KVC_E_SYSTEM, "giving back %zu bytes at %p: %s%s", span.count * granule, (void *) at(r, span.first),
                                    strerror(err), err == EINVAL ? "; is the memory locked (mlockall)?" : "");
}

// populate gives a span fresh pages, or none after a failure.
int HostBacking::populate(const Region & r, Span span) {
    const int rc = drop(r, span);
    if (rc != KVC_OK || !populate_) {
        return rc;
    }
    const int err = advise(r, span, MADV_POPULATE_WRITE);
    if (err == EINVAL) {
        populate_ = false; // before Linux 5.14: pages come with the first write
        return KVC_OK;
    }
    if (err != 0) {
        fail(err == ENOMEM ? KVC_E_NO_MEMORY : KVC_E_SYSTEM, "bringing %zu bytes of memory to %p: %s; free memory of this machine, "
             "or lower the limit", span.count * granule, (void *) at(r, span.first), strerror(err));
        (void) advise(r, span, MADV_DONTNEED);
        return err == ENOMEM ? KVC_E_NO_MEMORY : KVC_E_SYSTEM;
    }
    return KVC_OK;
}

void HostBacking::set_kept(HostRegion & r, Span span, uint8_t kept) {
    memset(r.kept.data() + span.first, kept, span.count);
    r.n_kept = kept != 0 ? r.n_kept + span.count : r.n_kept - span.count;
    kept_    = kept != 0 ? kept_ + span.count : kept_ - span.count;
}

int HostBacking::map(Region & region, Span span, size_t * reused) {
    auto & r = static_cast<HostRegion &>(region);
    const size_t end = span.first + span.count;
    *reused = 0;
    // Fresh memory first: only this can fail, and kept granules are untouched until then.
    for (size_t from = span.first; from < end;) {
        const Span run = next_equal(r, from, end);
        const int rc   = r.kept[from] != 0 ? KVC_OK : populate(r, run);
        if (rc != KVC_OK) {
            for (size_t back = span.first; back < from;) {
                const Span earlier = next_equal(r, back, from);
                if (r.kept[back] == 0) {
                    (void) advise(r, earlier, MADV_DONTNEED);
                }
                back += earlier.count;
            }
            return rc;
        }
        from += run.count;
    }
    for (size_t from = span.first; from < end;) {
        const Span run = next_equal(r, from, end);
        if (r.kept[from] != 0) {
            memset(at(r, run.first), 0, run.count * granule);
            set_kept(r, run, 0);
            *reused += run.count;
        }
        from += run.count;
    }
    return KVC_OK;
}

int HostBacking::unmap(Region & region, Span span, size_t keep, size_t * done) {
    auto & r = static_cast<HostRegion &>(region);
    const Span first = {span.first, std::min(keep, span.count)};
    const Span rest  = {span.first + first.count, span.count - first.count};
    set_kept(r, first, 1);
    *done = first.count;
    if (rest.count > 0) {
        const int rc = drop(r, rest);
        if (rc != KVC_OK) {
            return rc;
        }
        *done = span.count;
    }
    return KVC_OK;
}

int HostBacking::sweep(Region & region, Span span) {
    auto & r = static_cast<HostRegion &>(region);
    const size_t end = span.first + span.count;
    for (size_t from = span.first; from < end;) {
        const Span run = next_equal(r, from, end);
        const int rc   = r.kept[from] != 0 ? KVC_OK : drop(r, run);
        if (rc != KVC_OK) {
            return rc;
        }
        from += run.count;
    }
    return KVC_OK;
}

size_t HostBacking::reusable(const Region & region, const std::vector<Span> & spans) const {
    const auto & r = static_cast<const HostRegion &>(region);
    size_t n = 0;
    for (const Span & s : spans) {
        n += std::count(r.kept.begin() + s.first, r.kept.begin() + s.first + s.count, 1);
    }
    return n;
}

// trim_region gives up to count kept granules of a region back, the highest first.
int HostBacking::trim_region(HostRegion & r, size_t & count, Span spared) {
    size_t end = r.granules;
    while (count > 0 && r.n_kept > 0) {
        const void * last = memrchr(r.kept.data(), 1, end);
        if (last == nullptr) {
            break;
        }
        end = (const uint8_t *) last - r.kept.data();
        if (end >= spared.first && end - spared.first < spared.count) {
            end = spared.first;
            continue;
        }
        const int rc = drop(r, {end, 1});
        if (rc != KVC_OK) {
            return rc;
        }
        set_kept(r, {end, 1}, 0);
        count--;
    }
    return KVC_OK;
}

int HostBacking::trim(size_t count, const Region * region, Span spared) {
    for (size_t i = regions_.size(); i-- > 0 && count > 0;) {
        const int rc = trim_region(*regions_[i], count, regions_[i] == region ? spared : Span{0, 0});
        if (rc != KVC_OK) {
            return rc;
        }
    }
    return KVC_OK;
}

int HostBacking::memory(uint64_t * free_bytes, uint64_t * total_bytes) {
    FILE * f = fopen("/proc/meminfo", "re");
    if (f == nullptr) {
        return fail(KVC_E_SYSTEM, "reading /proc/meminfo: %s", strerror(errno));
    }
    unsigned long long available = 0, total = 0;
    char line[128];
    while (fgets(line, sizeof line, f) != nullptr) {
        (void) sscanf(line, "MemTotal: %llu", &total);
        (void) sscanf(line, "MemAvailable: %llu", &available);
    }
    fclose(f);
    if (total == 0) {
        return fail(KVC_E_SYSTEM, "reading /proc/meminfo: MemTotal is missing");
    }
    *free_bytes  = available * 1024;
    *total_bytes = total * 1024;
    return KVC_OK;
}

}  // namespace

int cpu_backing(const kvc_options_t & options, const System & system, std::unique_ptr<Backing> & out) {
    const size_t page    = sysconf(_SC_PAGESIZE);
    const size_t granule = options.granule_bytes != 0 ? options.granule_bytes : std::max<size_t>(KVC_GRANULE_CPU_DEFAULT, page);
    if ((granule & (granule - 1)) != 0 || granule < KVC_GRANULE_MIN || granule > KVC_GRANULE_CPU_MAX || granule % page != 0) {
        return fail(KVC_E_INVALID, "creating a pool with granules of %zu bytes: granules of host memory are powers of two from %zu to %u",
                    granule, std::max<size_t>(page, KVC_GRANULE_MIN), KVC_GRANULE_CPU_MAX);
    }
    out = std::make_unique<HostBacking>(granule, options.flags, system);
    return KVC_OK;
}

}  // namespace kvc
