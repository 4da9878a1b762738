// The class behind cuda_backing: handles.cpp creates and keeps memory, place.cpp places it.
#pragma once

#include "cuda/device.h"
#include "kvc.h"
#include "pool/backing.h"

namespace kvc::cuda {

enum class Shown : uint8_t { hole, zero, real };

struct DeviceRegion : Region {
    Address address = 0;
    std::vector<Shown>  shown;   // of each granule
    std::vector<Handle> handles; // of each real granule
};

class DeviceBacking : public Backing {
public:
    DeviceBacking(std::unique_ptr<DeviceHandle> device, size_t granule, uint32_t flags)
        : Backing(granule), device_(std::move(device)), cu_(device_->driver),
          bare_((flags & KVC_BARE) != 0), bare_end_((flags & (KVC_BARE | KVC_BARE_END)) == KVC_BARE_END) {}

    // open makes the zero granule.
    int open();
    int close() override;
    int reserve(size_t granules, std::unique_ptr<Region> & out) override;
    int release(Region & region) override;
    int map(Region & region, Span span, size_t * reused) override;
    bool disturbs(const Region & region, size_t granule) const override;
    int unmap(Region & region, Span span, size_t keep, size_t * done) override;
    size_t kept() const override { return kept_.size(); }
    size_t reusable(const Region & region, const std::vector<Span> & spans) const override;
    int trim(size_t count, const Region * region, Span spared) override;
    int memory(uint64_t * free_bytes, uint64_t * total_bytes) override;

private:
    int clear_zero();
    int make(size_t granules, bool zeros, std::unique_ptr<Region> & out);

    Address at(const DeviceRegion & r, size_t i) const { return r.address + i * granule; }

    // handles.cpp
    Result create(Handle * out);
    Result take(size_t count, std::vector<Handle> & taken, size_t * reused);
    void   give_back(std::vector<Handle> & taken, size_t reused);
    void   let_go(Handle handle);

    // place.cpp: one granule each, or a span; `shown` stays true after failures. The caller
    // has called settle, where something there may be touched.
    Result settle();
    Result hide(DeviceRegion & r, size_t i);
    Result show(DeviceRegion & r, size_t i, Handle handle, Shown as);
    Result allow(const DeviceRegion & r, Span span);
    Result fill(const DeviceRegion & r, Span span);
    Result place(DeviceRegion & r, Span span, const std::vector<Handle> & handles);
    Result show_zeros(DeviceRegion & r, Span span);
    bool   take_out(DeviceRegion & r, Span span, std::vector<Handle> & handles);
    Result empty(DeviceRegion & r);

    // Under KVC_BARE_END.
    static size_t end_of(const DeviceRegion & r);
    Result bare_end(DeviceRegion & r);

    std::unique_ptr<DeviceHandle> device_;
    const Driver & cu_;
    const bool     bare_, bare_end_;
    bool           has_zero_ = false;
    Handle         zero_     = 0;
    const char *   step_     = "";  // the driver call that was tried last, for sentences
    std::vector<Handle> kept_;      // mapped nowhere
    std::vector<std::unique_ptr<DeviceRegion>> half_made_; // that could be neither finished nor undone
};

}  // namespace kvc::cuda
