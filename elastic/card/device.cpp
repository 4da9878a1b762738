#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace card {

namespace {
constexpr size_t scratch_bytes = size_t(64) << 20;
constexpr auto   busy_time     = std::chrono::milliseconds(5);
}  // namespace

void require(int rc, const char * what) {
    if (rc != KVC_OK) {
        fprintf(stderr, "elastic_card: %s: %s\n", what, kvc_last_error());
        exit(1);
    }
}

void Device::check(kvc::cuda::Result result, const char * what) {
    if (result != kvc::cuda::success) {
        fprintf(stderr, "elastic_card: %s: error %d: %s\n", what, result, driver_->text(result));
        exit(1);
    }
}

Device::Device(int ordinal) : ordinal_(ordinal) {
    require(kvc::cuda::load(nullptr, &driver_), "loading the driver");
    check(driver_->init(0), "cuInit");
    check(driver_->device_get(&device_, ordinal), "cuDeviceGet");
    kvc::cuda::Context context;
    check(driver_->context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    check(driver_->context_push(context), "cuCtxPushCurrent");
    check(driver_->stream_create(&stream_, kvc::cuda::stream_non_blocking), "cuStreamCreate");
    const char * library = getenv("KVC_CUDA_LIBRARY");
    read_ = (Read) dlsym(dlopen(library != nullptr ? library : "libcuda.so.1", RTLD_NOW), "cuMemcpyDtoH_v2");
    if (read_ == nullptr) {
        fprintf(stderr, "elastic_card: the driver has no cuMemcpyDtoH_v2\n");
        exit(1);
    }
    require(kvc_pool_create(scratch_bytes, ordinal, &pool_), "making a pool");
    require(kvc_buffer_alloc(pool_, scratch_bytes, &scratch_), "reserving addresses");
    require(kvc_buffer_commit(scratch_, 0, scratch_bytes), "committing scratch memory");
    busy_fills_ = 1;
    busy(); // the first work of a stream takes longer
    wait();
    const auto begin = std::chrono::steady_clock::now();
    busy();
    wait();
    busy_fills_ = 1 + int(busy_time / std::max<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(1)));
}

Device::~Device() {
    wait();
    require(kvc_buffer_free(scratch_), "freeing scratch memory");
    require(kvc_pool_destroy(pool_), "freeing a pool");
    check(driver_->stream_destroy(stream_), "cuStreamDestroy");
    kvc::cuda::Context context;
    check(driver_->context_pop(&context), "cuCtxPopCurrent");
    check(driver_->context_release(device_), "cuDevicePrimaryCtxRelease");
}

void Device::queue(const void * at, size_t size, uint8_t value) {
    check(driver_->fill((kvc::cuda::Address) at, value, size, stream_), "cuMemsetD8Async");
}

void Device::busy() {
    for (int i = 0; i < busy_fills_; i++) {
        queue(kvc_buffer_get_base(scratch_), scratch_bytes, uint8_t(i));
    }
}

void Device::wait() { check(driver_->stream_wait(stream_), "cuStreamSynchronize"); }

bool Device::holds(const void * at, size_t size, uint8_t value) {
    std::vector<uint8_t> bytes(size);
    check(read_(bytes.data(), (kvc::cuda::Address) at, size), "cuMemcpyDtoH");
    return bytes[0] == value && memcmp(bytes.data(), bytes.data() + 1, size - 1) == 0;
}

}  // namespace card
