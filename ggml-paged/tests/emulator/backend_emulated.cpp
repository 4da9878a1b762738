// test_backend_emulated: the CUDA kernels and their orchestration on an emulated GPU.
// test_backend_tensor: the same on a GPU with tensor cores.
// test_backend_hybrid: with CPU workers that take their share of the pages.
#include <errno.h>

#include <cstdio>

#include "backend.h"
#include "device_io.h"
#include "emulator/gpu.h"

namespace {

// The emulator runs every CUDA thread by itself: thousands of times slower than a device.
constexpr double WORK_MAX = 0.02;  // GFLOP

const char * refuses_layer(const kvp_layer_desc * layer, uint32_t heads) {
    return kvp_gpu::refuses(layer, heads);
}

int forward_with(uint32_t workers, uint32_t capability, kvp_op * op, const kvp_io * io, uint64_t seed) {
    kvp_cuda_config config = {};
    config.workers = workers;
    emulator::emulated_gpu g(seed, {}, capability);
    int e = 0;
    {
        const auto paged = kvp_gpu::paged_gpu::make(g, config);
        e = paged ? forward_from_host(g, *paged, op, *io) : -EAGAIN;
    }
    // What the emulator found wrong is wrong, however right the result is.
    if (!g.wrong().empty()) {
        std::fprintf(stderr, "emulated GPU: %s\n", g.wrong().c_str());
        return -EFAULT;
    }
    return e;
}

int forward(kvp_op * op, const kvp_io * io, uint32_t, uint64_t seed) {
    return forward_with(0, 61, op, io, seed);
}

int forward_tensor(kvp_op * op, const kvp_io * io, uint32_t, uint64_t seed) {
    return forward_with(0, 80, op, io, seed);
}

int forward_hybrid(kvp_op * op, const kvp_io * io, uint32_t threads, uint64_t seed) {
    return forward_with(threads, 61, op, io, seed);
}

} // namespace

const test_backend * test_backend_emulated() {
    static const test_backend backend = {"emulated", 1e-4, true, WORK_MAX, nullptr, refuses_layer, nullptr, forward};
    return &backend;
}

const test_backend * test_backend_tensor() {
    static const test_backend backend = {"tensor", 1e-3, true, WORK_MAX, nullptr, refuses_layer, nullptr, forward_tensor};
    return &backend;
}

const test_backend * test_backend_hybrid() {
    static const test_backend backend = {"hybrid", 1e-4, false, WORK_MAX, nullptr, refuses_layer, nullptr, forward_hybrid};
    return &backend;
}
