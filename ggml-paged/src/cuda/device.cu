#include "cuda/device.h"

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "cuda/attend_launch.h"
#include "cuda/merge.cuh"
#include "cuda/rows.cuh"

namespace kvp_gpu {

namespace {

// Per thread: several threads wait for events at the same time.
thread_local std::string last_sentence;

// Memory for programs without a pool. Blocks are kept by depth: they are freed in the
// reverse order of allocation, and ops of one shape ask for the same sizes again.
class stack_pool {
public:
    ~stack_pool() {
        for (block & b : blocks_) {
            cudaFree(b.memory);
        }
    }

    void * alloc(size_t bytes) {
        if (depth_ < blocks_.size() && blocks_[depth_].bytes < bytes) {
            cudaFree(blocks_[depth_].memory);
            blocks_[depth_] = block();
        }
        if (depth_ == blocks_.size()) {
            blocks_.emplace_back();
        }
        block & b = blocks_[depth_];
        if (!b.memory) {
            if (cudaMalloc(&b.memory, bytes) != cudaSuccess) {
                cudaGetLastError();
                b = block();
                return nullptr;
            }
            b.bytes = bytes;
        }
        ++depth_;
        return b.memory;
    }

    void free() { --depth_; }

private:
    struct block {
        void * memory = nullptr;
        size_t bytes = 0;
    };
    std::vector<block> blocks_;
    size_t             depth_ = 0;
};

class cuda_gpu final : public cuda_gpu_base {
public:
    explicit cuda_gpu(int device) : device_(device) {}
    ~cuda_gpu() override;
    cudaError_t open();

    void use(void * stream, const kvp_cuda_pool & pool) override {
        streams_[stream_compute] = static_cast<cudaStream_t>(stream);
        pool_ = pool;
    }

    bool mma() const override { return mma_; }

    void * pool_alloc(size_t bytes) override;
    void   pool_free(void * memory) override;
    void * keep_alloc(size_t bytes) override;
    void   keep_free(void * memory) override;
    int    memory(uint64_t * free, uint64_t * total) override;
    void * pinned_alloc(size_t bytes) override;
    void   pinned_free(void * memory) override;
    int    copy_in(stream s, void * device, const void * host, size_t bytes) override;
    int    copy_out(stream s, void * host, const void * device, size_t bytes) override;
    int    copy_within(void * to, const void * from, size_t bytes) override;
    int    zero(void * device, size_t bytes) override;
    int    make_events(uint32_t n) override;
    int    record(stream s, uint32_t event) override;
    int    wait(stream s, uint32_t event) override;
    int    sync(uint32_t event) override;
    bool   can_time() const override { return true; }
    int    elapsed(uint32_t from, uint32_t to, uint64_t * ns) override;
    int    drain() override;
    int    attend(uint32_t dk, uint32_t dv, const attend_split & split, grid_size grid, const attend_args & a) override;
    int    merge(const merge_args & a) override;
    int    clear(const merge_args & a) override;
    int    finish(const finish_args & a) override;
    int    quantize(const quantize_args & a) override;
    int    patch(const patch_args & a) override;
    const char * last_error() const override { return last_sentence.c_str(); }

private:
    int check(cudaError_t e, const char * what);
    // Calls come from threads that may have another device current.
    void enter() { cudaSetDevice(device_); }
    cudaStream_t compute() { return streams_[stream_compute]; }

    const int                device_;
    bool                     mma_ = false;
    cudaStream_t             own_[n_streams] = {};
    cudaStream_t             streams_[n_streams] = {};
    std::vector<cudaEvent_t> events_;
    kvp_cuda_pool            pool_ = {};
    stack_pool               own_pool_;
};

cudaError_t cuda_gpu::open() {
    cudaError_t e = cudaSetDevice(device_);
    for (uint32_t s = 0; s < n_streams && e == cudaSuccess; ++s) {
        e = cudaStreamCreateWithFlags(&own_[s], cudaStreamNonBlocking);
        streams_[s] = own_[s];
    }
    if (e == cudaSuccess) {
        // Kernels that were not compiled for this device fail here and not in the middle of
        // a model.
        cudaFuncAttributes attributes;
        e = cudaFuncGetAttributes(&attributes, kvp_kernels::clear);
        // Not the device's capability: code for older ones runs on it, too, and has no mma. Off by
        // default until a card has run it.
        const char * wanted = getenv("KVP_MMA");
        mma_ = e == cudaSuccess && attributes.ptxVersion >= KVP_MMA_CAPABILITY && wanted && strcmp(wanted, "1") == 0;
    }
    return e;
}

cuda_gpu::~cuda_gpu() {
    enter();
    for (cudaEvent_t e : events_) {
        cudaEventDestroy(e);
    }
    for (cudaStream_t s : own_) {
        if (s) {
            cudaStreamSynchronize(s);
            cudaStreamDestroy(s);
        }
    }
}

int cuda_gpu::check(cudaError_t e, const char * what) {
    if (e == cudaSuccess) {
        return 0;
    }
    // The next call must not see errors of this call's launches and arguments.
    cudaGetLastError();
    last_sentence = std::string(what) + " on CUDA device " + std::to_string(device_) + ": " + cudaGetErrorString(e);
    return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

void * cuda_gpu::pool_alloc(size_t bytes) {
    enter();
    void * p = pool_.alloc ? pool_.alloc(pool_.user, bytes) : own_pool_.alloc(bytes);
    if (!p) {
        check(cudaErrorMemoryAllocation, "allocating device memory");
    }
    return p;
}

void cuda_gpu::pool_free(void * memory) {
    if (!memory) {
        return;
    }
    enter();
    if (pool_.alloc) {
        pool_.free(pool_.user, memory);
    } else {
        own_pool_.free();
    }
}

void * cuda_gpu::keep_alloc(size_t bytes) {
    enter();
    void * p = nullptr;
    return check(cudaMalloc(&p, bytes), "allocating device memory to keep pages in") ? nullptr : p;
}

void cuda_gpu::keep_free(void * memory) {
    enter();
    cudaFree(memory);
}

int cuda_gpu::memory(uint64_t * free, uint64_t * total) {
    enter();
    size_t f = 0, t = 0;
    const int error = check(cudaMemGetInfo(&f, &t), "asking for free memory");
    *free = f;
    *total = t;
    return error;
}

void * cuda_gpu::pinned_alloc(size_t bytes) {
    enter();
    void * p = nullptr;
    return check(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), "allocating page-locked memory") ? nullptr : p;
}

void cuda_gpu::pinned_free(void * memory) {
    if (memory) {
        enter();
        cudaFreeHost(memory);
    }
}

int cuda_gpu::copy_in(stream s, void * device, const void * host, size_t bytes) {
    enter();
    return check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, streams_[s]), "copying to the device");
}

int cuda_gpu::copy_out(stream s, void * host, const void * device, size_t bytes) {
    enter();
    return check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, streams_[s]), "copying to the host");
}

int cuda_gpu::copy_within(void * to, const void * from, size_t bytes) {
    enter();
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, compute()), "copying on the device");
}

int cuda_gpu::zero(void * device, size_t bytes) {
    enter();
    return check(cudaMemsetAsync(device, 0, bytes, compute()), "clearing memory");
}

int cuda_gpu::make_events(uint32_t n) {
    enter();
    while (events_.size() < n) {
        cudaEvent_t e = nullptr;
        // Waiting threads sleep, because the CPU has pages to attend.
        if (int error = check(cudaEventCreateWithFlags(&e, cudaEventBlockingSync), "making an event")) {
            return error;
        }
        events_.push_back(e);
    }
    return 0;
}

int cuda_gpu::record(stream s, uint32_t event) {
    enter();
    return check(cudaEventRecord(events_[event], streams_[s]), "recording an event");
}

int cuda_gpu::wait(stream s, uint32_t event) {
    enter();
    return check(cudaStreamWaitEvent(streams_[s], events_[event], 0), "making a stream wait");
}

int cuda_gpu::sync(uint32_t event) {
    enter();
    return check(cudaEventSynchronize(events_[event]), "waiting for work");
}

int cuda_gpu::elapsed(uint32_t from, uint32_t to, uint64_t * ns) {
    enter();
    float ms = 0;
    if (int error = check(cudaEventElapsedTime(&ms, events_[from], events_[to]), "measuring time")) {
        return error;
    }
    *ns = uint64_t(double(ms) * 1e6);
    return 0;
}

int cuda_gpu::drain() {
    enter();
    int error = 0;
    for (cudaStream_t s : streams_) {
        const int e = check(cudaStreamSynchronize(s), "waiting for a stream");
        error = error ? error : e;
    }
    return error;
}

// --- launches -------------------------------------------------------------------------

int cuda_gpu::attend(uint32_t dk, uint32_t dv, const attend_split & split, grid_size grid, const attend_args & a) {
    enter();
#define KVP_CASE(K, V)                                           \
    if (dk == K && dv == V) {                                    \
        launch_attend<K, V>(split, mma_, grid, compute(), a);    \
        return check(cudaGetLastError(), "launching attention"); \
    }
    KVP_FOR_EACH_HEAD_DIM(KVP_CASE)
#undef KVP_CASE
    last_sentence = "there is no attention kernel for these head sizes";
    return -ENOTSUP;
}

int cuda_gpu::merge(const merge_args & a) {
    enter();
    kvp_kernels::merge<<<dim3(a.rows, a.states), merge_block, 0, compute()>>>(a);
    return check(cudaGetLastError(), "launching a merge");
}

int cuda_gpu::clear(const merge_args & a) {
    enter();
    kvp_kernels::clear<<<a.rows, merge_block, 0, compute()>>>(a);
    return check(cudaGetLastError(), "clearing results");
}

int cuda_gpu::finish(const finish_args & a) {
    enter();
    kvp_kernels::finish<<<a.rows, merge_block, 0, compute()>>>(a);
    return check(cudaGetLastError(), "finishing attention");
}

int cuda_gpu::quantize(const quantize_args & a) {
    enter();
    const uint64_t jobs = uint64_t(a.n) * a.heads * ((a.elements + 31) / 32);
    kvp_kernels::quantize<<<uint32_t((jobs + quant_block - 1) / quant_block), quant_block, 0, compute()>>>(a);
    return check(cudaGetLastError(), "quantizing new rows");
}

int cuda_gpu::patch(const patch_args & a) {
    enter();
    kvp_kernels::patch<<<a.n, copy_block, 0, compute()>>>(a);
    return check(cudaGetLastError(), "putting new rows into a page");
}

} // namespace

std::unique_ptr<cuda_gpu_base> make_cuda_gpu(int device, char * message, size_t message_bytes) {
    std::unique_ptr<cuda_gpu> g(new cuda_gpu(device));
    const cudaError_t e = g->open();
    if (e == cudaSuccess) {
        return g;
    }
    cudaGetLastError();
    snprintf(message, message_bytes, "Paged attention cannot use CUDA device %d: %s.%s", device, cudaGetErrorString(e),
             e == cudaErrorInvalidDeviceFunction || e == cudaErrorNoKernelImageForDevice
                 ? " Build with its architecture in CMAKE_CUDA_ARCHITECTURES." : "");
    return nullptr;
}

} // namespace kvp_gpu
