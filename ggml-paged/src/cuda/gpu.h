// The GPU interface below the orchestration of the op: memory, three streams, events,
// launches of the kernels. CUDA and the emulator implement it, so that all code above is
// the same for both and is tested without a device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cuda/kernel_args.h"
#include "cuda/split.h"

namespace kvp_gpu {

// Work in one stream happens in its order; events alone order streams.
enum stream : uint32_t {
    stream_copy    = 0,  // pages to staging slots
    stream_compute = 1,  // all kernels; the engine's own stream
    stream_back    = 2,  // new rows to the host
    n_streams      = 3,
};

struct grid_size {
    uint32_t x, y, z;
};

// Functions return 0 or a negative errno, and last_error has the error's sentence.
class gpu {
public:
    virtual ~gpu() = default;

    // Device memory in the order of the compute stream: freed memory may be given out
    // again at once, and is then used after work that was enqueued on that stream before.
    // Memory is freed in the reverse order. NULL, with last_error: no memory.
    virtual void * pool_alloc(size_t bytes) = 0;
    virtual void   pool_free(void * memory) = 0;

    // Device memory that is kept from op to op and freed in any order, after drain. NULL,
    // with last_error: no memory.
    virtual void * keep_alloc(size_t bytes) = 0;
    virtual void   keep_free(void * memory) = 0;
    // The device's memory, and the free part of it now, for all users of the device.
    virtual int memory(uint64_t * free, uint64_t * total) = 0;

    // Page-locked host memory.
    virtual void * pinned_alloc(size_t bytes) = 0;
    virtual void   pinned_free(void * memory) = 0;

    virtual int copy_in(stream s, void * device, const void * host, size_t bytes) = 0;
    virtual int copy_out(stream s, void * host, const void * device, size_t bytes) = 0;
    virtual int copy_within(void * to, const void * from, size_t bytes) = 0;  // on the compute stream
    virtual int zero(void * device, size_t bytes) = 0;                        // on the compute stream

    // make_events makes sure that events 0 .. n-1 exist.
    virtual int make_events(uint32_t n) = 0;
    virtual int record(stream s, uint32_t event) = 0;
    virtual int wait(stream s, uint32_t event) = 0;   // of a stream
    virtual int sync(uint32_t event) = 0;             // of the calling thread
    virtual bool can_time() const = 0;
    virtual int elapsed(uint32_t from, uint32_t to, uint64_t * ns) = 0;
    virtual int drain() = 0;                          // all streams

    // Launches, all on the compute stream.
    virtual int attend(uint32_t dk, uint32_t dv, const attend_split & split, grid_size grid, const attend_args & a) = 0;
    virtual int merge(const merge_args & a) = 0;
    virtual int clear(const merge_args & a) = 0;
    virtual int finish(const finish_args & a) = 0;
    virtual int quantize(const quantize_args & a) = 0;
    virtual int patch(const patch_args & a) = 0;

    virtual const char * last_error() const = 0;
};

} // namespace kvp_gpu
