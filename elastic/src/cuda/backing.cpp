#include "cuda/backing.h"

#include <algorithm>

#include "cuda/device_backing.h"
#include "pool/error.h"

namespace kvc {

namespace cuda {

int DeviceBacking::open() {
    if (bare_) {
        return KVC_OK;
    }
    {
        Current current(*device_);
        const Result r = current.result != success ? current.result : create(&zero_);
        if (r != success) {
            return device_->failed("creating the zero granule of", granule, r);
        }
        has_zero_ = true;
    }
    return clear_zero();
}

// clear_zero fills the zero granule with zeros, since garbage may be NaN, where nobody else sees it.
int DeviceBacking::clear_zero() {
    std::unique_ptr<Region> region;
    int rc = make(1, true, region);
    if (rc != KVC_OK) {
        return rc;
    }
    {
        Current current(*device_);
        step_ = "entering the context to fill";
        const Result r = current.result == success ? fill(static_cast<DeviceRegion &>(*region), {0, 1}) : current.result;
        rc = r == success ? KVC_OK : device_->failed(step_, granule, r);
    }
    half_made_.reserve(half_made_.size() + 1);
    const int released = release(*region);
    if (released != KVC_OK) {
        half_made_.push_back(std::unique_ptr<DeviceRegion>(static_cast<DeviceRegion *>(region.release())));
    }
    return rc == KVC_OK ? released : rc;
}

int DeviceBacking::close() {
    while (!half_made_.empty()) {
        const int rc = release(*half_made_.back());
        if (rc != KVC_OK) {
            return rc;
        }
        half_made_.pop_back();
    }
    const int rc = trim(kept_.size(), nullptr, {0, 0});
    if (rc != KVC_OK) {
        return rc;
    }
    if (has_zero_) {
        Current current(*device_);
        const Result r = current.result != success ? current.result : cu_.release(zero_);
        if (r != success) {
            return device_->failed("releasing the zero granule of", granule, r);
        }
        has_zero_ = false;
    }
    return device_->close();
}

int DeviceBacking::reserve(size_t granules, std::unique_ptr<Region> & out) {
    return make(granules, !bare_ && !bare_end_, out);
}

// make reserves the addresses of a region, and shows the zero granule in all of it.
int DeviceBacking::make(size_t granules, bool zeros, std::unique_ptr<Region> & out) {
    auto region = std::make_unique<DeviceRegion>();
    region->granules = granules;
    half_made_.reserve(half_made_.size() + 1);
    Current current(*device_);
    step_ = "entering the context to reserve";
    Result r = current.result;
    if (r == success) {
        step_ = "reserving addresses for";
        r = cu_.reserve(&region->address, granules * granule, granule, 0, 0);
    }
    if (r != success) {
        return device_->failed(step_, granules * granule, r);
    }
    try {
        region->shown.assign(granules, Shown::hole);
        region->handles.assign(granules, 0);
    } catch (...) {
        (void) cu_.unreserve(region->address, granules * granule);
        throw;
    }
    region->base = reinterpret_cast<void *>(region->address);
    if (zeros && (r = show_zeros(*region, {0, granules})) != success) {
        const int rc = device_->failed(step_, granules * granule, r);
        if (empty(*region) != success || cu_.unreserve(region->address, granules * granule) != success) {
            half_made_.push_back(std::move(region));
        }
        return rc;
    }
    out = std::move(region);
    return KVC_OK;
}

int DeviceBacking::release(Region & region) {
    auto & r = static_cast<DeviceRegion &>(region);
    kept_.reserve(kept_.size() + std::count(r.shown.begin(), r.shown.end(), Shown::real));
    Current current(*device_);
    step_ = "entering the context to free";
    Result result = current.result == success ? settle() : current.result;
    if (result == success) {
        result = empty(r);
    }
    if (result == success) {
        step_  = "giving back the addresses of";
        result = cu_.unreserve(r.address, r.granules * granule);
    }
    return result == success ? KVC_OK : device_->failed(step_, r.granules * granule, result);
}

int DeviceBacking::map(Region & region, Span span, size_t * reused) {
    auto & r = static_cast<DeviceRegion &>(region);
    std::vector<Handle> handles;
    // Room for every handle that may have to be kept: the new ones, and stuck ones.
    kept_.reserve(kept_.size() + 2 * span.count);
    Current current(*device_);
    step_ = "entering the context to commit";
    Result result = current.result == success ? take(span.count, handles, reused) : current.result;
    const bool grows = bare_end_ && span.first >= end_of(r);
    if (result == success && !bare_ && !grows) {
        result = settle();
    }
    if (result == success && bare_end_) {
        result = show_zeros(r, {0, span.first}); // all before it may be touched, and one could have failed
    }
    if (result != success) {
        const int rc = device_->failed(step_, span.count * granule, result);
        give_back(handles, *reused);
        (void) bare_end(r);
        return rc;
    }
    if ((result = place(r, span, handles)) != success) {
        const int rc = device_->failed(step_, span.count * granule, result);
        if (!take_out(r, span, handles)) {
            fail_more(rc, "; the mappings of before could not all be restored");
        }
        give_back(handles, std::min(*reused, handles.size()));
        return rc;
    }
    return KVC_OK;
}

bool DeviceBacking::disturbs(const Region & region, size_t g) const {
    const auto & r = static_cast<const DeviceRegion &>(region);
    return !bare_ && (!bare_end_ || g < end_of(r));
}

int DeviceBacking::unmap(Region & region, Span span, size_t keep, size_t * done) {
    auto & r = static_cast<DeviceRegion &>(region);
    kept_.reserve(kept_.size() + span.count);
    Current current(*device_);
    step_ = "entering the context to uncommit";
    Result result = current.result == success ? settle() : current.result;
    for (*done = 0; *done < span.count && result == success; ++*done) {
        const size_t i = span.first + *done;
        if ((result = hide(r, i)) != success) {
            break;
        }
        if (keep > 0) {
            keep--;
            kept_.push_back(r.handles[i]);
        } else {
            let_go(r.handles[i]);
        }
    }
    const char * step = step_;
    if (!bare_ && *done > 0) {
        const size_t end   = bare_end_ ? end_of(r) : r.granules;
        const size_t count = end > span.first ? std::min(*done, end - span.first) : 0;
        const Result shown = show_zeros(r, {span.first, count});
        (void) bare_end(r); // the next call goes on
        if (result == success && (result = shown) != success) {
            step = step_;
        }
    }
    return result == success ? KVC_OK : device_->failed(step, span.count * granule, result);
}

}  // namespace cuda

int cuda_backing(int device, const kvc_options_t & options, std::unique_ptr<Backing> & out) {
    if (device < 0) {
        return fail(KVC_E_INVALID, "creating a pool on device %d: devices are CUDA devices from 0 on, or %d for host memory",
                    device, KVC_CPU);
    }
    const cuda::Driver * driver = nullptr;
    int rc = cuda::load(options.cuda_library, &driver);
    if (rc != KVC_OK) {
        return rc;
    }
    auto handle = std::make_unique<cuda::DeviceHandle>(*driver, device);
    if ((rc = handle->open()) != KVC_OK) {
        return rc;
    }
    const size_t smallest = handle->granularity;
    const size_t granule  = options.granule_bytes != 0 ? options.granule_bytes : smallest;
    if ((granule & (granule - 1)) != 0 || granule < smallest || granule > KVC_GRANULE_CUDA_MAX) {
        handle->close();
        return fail(KVC_E_INVALID, "creating a pool with granules of %zu bytes: granules of CUDA device %d are powers of two "
                    "from %zu to %u", granule, device, smallest, KVC_GRANULE_CUDA_MAX);
    }
    auto backing = std::make_unique<cuda::DeviceBacking>(std::move(handle), granule, options.flags);
    if ((rc = backing->open()) != KVC_OK) {
        backing->close();
        return rc;
    }
    out = std::move(backing);
    return KVC_OK;
}

}  // namespace kvc
