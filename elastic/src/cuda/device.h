// One CUDA device: its primary context, which the CUDA runtime of the same process uses too,
// and a stream for filling with zeros.
#pragma once

#include "cuda/driver.h"

namespace kvc::cuda {

class DeviceHandle {
public:
    DeviceHandle(const Driver & driver, int ordinal) : driver(driver), ordinal(ordinal) {}

    // open retains the context, after the device said that it has virtual memory management.
    int open();
    int close();    // may be repeated after a failure

    // failed notes a sentence for a driver's result, and chooses the code.
    int failed(const char * doing, size_t bytes, Result result) const;

    AllocationProperties properties() const;
    AccessDescription    access() const;

    const Driver & driver;
    const int      ordinal;
    size_t         granularity = 0; // bytes
    Context        context = nullptr;
    Stream         stream  = nullptr;

private:
    int begin();

    Device device_   = 0;
    bool   retained_ = false;
};

// A Current makes a device's context this thread's current one while it lives.
class Current {
public:
    explicit Current(const DeviceHandle & device) : driver_(device.driver), result(driver_.context_push(device.context)) {}
    ~Current() {
        // Pop also reports failures of earlier work, which other calls report too.
        Context popped;
        if (result == success) {
            (void) driver_.context_pop(&popped);
        }
    }
    Current(const Current &) = delete;

private:
    const Driver & driver_;

public:
    const Result result;
};

}  // namespace kvc::cuda
