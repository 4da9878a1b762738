// test_backend_cuda: a CUDA device, with one context for all ops.
#include <errno.h>

#include <memory>

#include "backend.h"
#include "cuda/device.h"
#include "device_io.h"

namespace {

// The device and its context; NULL with a sentence where there is none.
struct cuda_backend {
    std::unique_ptr<kvp_gpu::cuda_gpu_base> device;
    std::unique_ptr<kvp_gpu::paged_gpu>     paged;
    char                                    message[256] = "The context of the CUDA device cannot be made.";

    cuda_backend() {
        device = kvp_gpu::make_cuda_gpu(0, message, sizeof message);
        if (!device) {
            return;
        }
        // Pages that stay on the device must not change a bit either.
        kvp_cuda_config config = {};
        config.vram_bytes = uint64_t(1) << 30;
        paged = kvp_gpu::paged_gpu::make(*device, config);
    }
};

cuda_backend & backend_state() {
    static cuda_backend state;
    return state;
}

const char * missing() {
    return backend_state().paged ? nullptr : backend_state().message;
}

const char * refuses_layer(const kvp_layer_desc * layer, uint32_t heads) {
    const char * why = missing();
    return why ? why : kvp_gpu::refuses(layer, heads);
}

void prepare(kvp_config * config) {
    config->arena_alloc = kvp_cuda_arena_alloc;
    config->arena_free = kvp_cuda_arena_free;
}

int forward(kvp_op * op, const kvp_io * io, uint32_t, uint64_t) {
    cuda_backend & state = backend_state();
    return state.paged ? forward_from_host(*state.device, *state.paged, op, *io) : -ENODEV;
}

} // namespace

const test_backend * test_backend_cuda() {
    const kvp_gpu::cuda_gpu_base * device = backend_state().device.get();
    static const test_backend backend = {"cuda", device && device->mma() ? 1e-3 : 1e-4, true, 40, missing, refuses_layer, prepare, forward};
    return &backend;
}
