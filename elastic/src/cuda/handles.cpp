// Memory of the device that is mapped nowhere: created, kept, given back.
#include "cuda/device_backing.h"
#include "kvc.h"
#include "pool/error.h"

namespace kvc::cuda {

Result DeviceBacking::create(Handle * out) {
    step_ = "creating memory for";
    const AllocationProperties p = device_->properties();
    return cu_.create(out, granule, &p, 0);
}

// take fills `taken` from kept memory and then from the device. After a failure `taken` has
// those that were found, for give_back.
Result DeviceBacking::take(size_t count, std::vector<Handle> & taken, size_t * reused) {
    taken.reserve(count);
    for (*reused = 0; *reused < count && !kept_.empty(); ++*reused) {
        taken.push_back(kept_.back());
        kept_.pop_back();
    }
    while (taken.size() < count) {
        Handle fresh   = 0;
        const Result r = create(&fresh);
        if (r != success) {
            return r;
        }
        taken.push_back(fresh);
    }
    return success;
}

// give_back undoes take. The capacity of kept_ never shrinks, so it has room for `reused`.
void DeviceBacking::give_back(std::vector<Handle> & taken, size_t reused) {
    for (size_t i = 0; i < taken.size(); i++) {
        if (i < reused) {
            kept_.push_back(taken[i]);
        } else {
            let_go(taken[i]);
        }
    }
    taken.clear();
}

// let_go releases a handle. A handle that the driver does not take stays known as kept.
void DeviceBacking::let_go(Handle handle) {
    if (cu_.release(handle) != success) {
        kept_.push_back(handle);
    }
}

size_t DeviceBacking::reusable(const Region &, const std::vector<Span> & spans) const {
    size_t wanted = 0;
    for (const Span & s : spans) {
        wanted += s.count;
    }
    return wanted < kept_.size() ? wanted : kept_.size();
}

int DeviceBacking::trim(size_t count, const Region *, Span) {
    if (count == 0 || kept_.empty()) {
        return KVC_OK;
    }
    Current current(*device_);
    if (current.result != success) {
        return device_->failed("entering the context to release", granule, current.result);
    }
    for (; count > 0 && !kept_.empty(); count--) {
        const Result r = cu_.release(kept_.back());
        if (r != success) {
            return device_->failed("releasing", granule, r);
        }
        kept_.pop_back();
    }
    return KVC_OK;
}

int DeviceBacking::memory(uint64_t * free_bytes, uint64_t * total_bytes) {
    Current current(*device_);
    size_t free_now = 0, total = 0;
    const Result r = current.result != success ? current.result : cu_.memory_info(&free_now, &total);
    if (r != success) {
        return device_->failed("asking for free memory beside", kept_.size() * granule, r);
    }
    *free_bytes  = free_now;
    *total_bytes = total;
    return KVC_OK;
}

}  // namespace kvc::cuda
