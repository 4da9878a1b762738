#include "cuda/device.h"

#include "kvc.h"
#include "pool/error.h"

namespace kvc::cuda {

int DeviceHandle::failed(const char * doing, size_t bytes, Result result) const {
    return fail(result == out_of_memory ? KVC_E_NO_MEMORY : KVC_E_SYSTEM, "%s %zu bytes on CUDA device %d: error %d, %s%s",
                doing, bytes, ordinal, result, driver.text(result),
                result == out_of_memory ? "; free memory of the device, or lower the limit" : "");
}

AllocationProperties DeviceHandle::properties() const {
    AllocationProperties p{};
    p.type     = allocation_pinned;
    p.location = {location_device, ordinal};
    return p;
}

AccessDescription DeviceHandle::access() const {
    return {{location_device, ordinal}, access_read_write};
}

int DeviceHandle::open() {
    Result r = driver.init(0);
    if (r != success) {
        return fail(KVC_E_NO_VMM, "starting the CUDA driver: error %d, %s", r, driver.text(r));
    }
    if ((r = driver.device_get(&device_, ordinal)) != success) {
        return fail(r == invalid_device ? KVC_E_INVALID : KVC_E_SYSTEM, "opening CUDA device %d: error %d, %s", ordinal, r, driver.text(r));
    }
    int vmm = 0;
    if ((r = driver.device_attribute(&vmm, attribute_vmm, device_)) != success || vmm == 0) {
        return fail(KVC_E_NO_VMM, "opening CUDA device %d: it has no virtual memory management", ordinal);
    }
    if ((r = driver.context_retain(&context, device_)) != success) {
        return fail(r == out_of_memory ? KVC_E_NO_MEMORY : KVC_E_SYSTEM, "retaining the context of CUDA device %d: error %d, %s",
                    ordinal, r, driver.text(r));
    }
    retained_ = true;
    const int rc = begin();
    if (rc != KVC_OK) {
        close();
    }
    return rc;
}

int DeviceHandle::begin() {
    Current current(*this);
    if (current.result != success) {
        return failed("entering the context for", 0, current.result);
    }
    const AllocationProperties p = properties();
    Result r = driver.granularity(&granularity, &p, granularity_minimum);
    if (r != success || granularity == 0 || (granularity & (granularity - 1)) != 0) {
        return fail(KVC_E_NO_VMM, "asking CUDA device %d for its granularity: error %d, %s; the answer was %zu bytes", ordinal, r,
                    driver.text(r), granularity);
    }
    if ((r = driver.stream_create(&stream, stream_non_blocking)) != success) {
        stream = nullptr;
        return failed("making a stream to fill", 0, r);
    }
    return KVC_OK;
}

int DeviceHandle::close() {
    if (stream != nullptr) {
        Current current(*this);
        const Result r = current.result != success ? current.result : driver.stream_destroy(stream);
        if (r != success) {
            return failed("giving back the stream for", 0, r);
        }
        stream = nullptr;
    }
    if (retained_) {
        const Result r = driver.context_release(device_);
        if (r != success) {
            return failed("releasing the context for", 0, r);
        }
        retained_ = false;
    }
    return KVC_OK;
}

}  // namespace kvc::cuda
