// The CPU backend of test_paged_attn, and the list of those that are built in.
#include <cstring>
#include <thread>
#include <vector>

#include "backend.h"

namespace {

const char * refuses_nothing(const kvp_layer_desc *, uint32_t) {
    return nullptr;
}

int forward(kvp_op * op, const kvp_io * io, uint32_t threads, uint64_t seed) {
    const size_t bytes = kvp_cpu_work_bytes(op, threads);
    // Any alignment must do, and the memory's content must not matter.
    std::vector<uint8_t> work(bytes + 64, 0xff);
    std::vector<int>         results(threads);
    std::vector<std::thread> team;
    for (uint32_t i = 1; i < threads; i++) {
        team.emplace_back([&, i] { results[i] = kvp_cpu_forward(op, io, i, threads, work.data() + seed % 64, bytes); });
    }
    results[0] = kvp_cpu_forward(op, io, 0, threads, work.data() + seed % 64, bytes);
    for (std::thread & t : team) {
        t.join();
    }
    return results[0];
}

const test_backend cpu = {"cpu", 1e-4, true, 40, nullptr, refuses_nothing, nullptr, forward};

} // namespace

const test_backend * test_backend_cpu() {
    return &cpu;
}

std::vector<const test_backend *> test_backends() {
    return {
        test_backend_cpu(),
#ifdef KVP_TEST_EMULATED
        test_backend_emulated(),
        test_backend_tensor(),
        test_backend_hybrid(),
#endif
#ifdef KVP_TEST_CUDA
        test_backend_cuda(),
#endif
    };
}

const test_backend * test_backend_find(const char * name) {
    for (const test_backend * backend : test_backends()) {
        if (std::strcmp(name, backend->name) == 0) {
            return backend;
        }
    }
    return nullptr;
}
