// A CUDA device as the program sees it: memory of pools is written by its queue and read back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver.h"
#include "kvc.h"

namespace card {

// require ends the program with the sentence of the library's last error.
void require(int rc, const char * what);

class Device {
public:
    explicit Device(int ordinal);
    ~Device();
    Device(const Device &) = delete;

    // queue fills [at, at+size) some time after this call, behind all that was queued before.
    void queue(const void * at, size_t size, uint8_t value);
    // busy queues work of some milliseconds, on memory that is no pool's.
    void busy();
    void wait();
    // holds reports whether all bytes of [at, at+size) are value, without waiting for the queue.
    bool holds(const void * at, size_t size, uint8_t value);

    int ordinal() const { return ordinal_; }

private:
    typedef kvc::cuda::Result (*Read)(void * to, kvc::cuda::Address from, size_t size);

    void check(kvc::cuda::Result result, const char * what);

    const int ordinal_;
    const kvc::cuda::Driver * driver_ = nullptr;
    kvc::cuda::Device  device_  = 0;
    kvc::cuda::Stream  stream_  = nullptr;
    Read               read_    = nullptr;
    kvc_pool_t *       pool_    = nullptr; // of the memory that busy writes
    kvc_buffer_t *     scratch_ = nullptr;
    int                busy_fills_ = 0;
};

}  // namespace card
