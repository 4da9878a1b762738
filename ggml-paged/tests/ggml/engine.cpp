#include "engine.h"

#include <dlfcn.h>

#include <stdexcept>

namespace fs = std::filesystem;

namespace {

// Of graphs of one layer of attention.
constexpr size_t GRAPH_NODES_MAX = 256;

ggml_backend_t open_backend(const backend_module & m) {
    if (ggml_backend_reg_dev_count(m.reg) == 0) {
        throw std::runtime_error(std::string(ggml_backend_reg_name(m.reg)) + " has no device here; is the driver loaded?");
    }
    ggml_backend_t backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(m.reg, 0), nullptr);
    if (!backend) {
        throw std::runtime_error(std::string("the device of ") + ggml_backend_reg_name(m.reg) + " cannot be used.");
    }
    return backend;
}

void set_threads(const backend_module & m, ggml_backend_t cpu, uint32_t threads) {
    const auto set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(m.reg, "ggml_backend_set_n_threads");
    if (!set) {
        throw std::runtime_error("the CPU backend has no ggml_backend_set_n_threads.");
    }
    set(cpu, (int) threads);
}

void * open_library(const fs::path & file) {
    // Lazily, since a module that was built in part lacks functions that nothing here calls.
    void * handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!handle) {
        throw std::runtime_error("the backend " + file.string() + " cannot be loaded: " + dlerror());
    }
    return handle;
}

// 0: this machine's processor cannot run the module.
int score(const fs::path & file) {
    const auto score = (int (*)()) dlsym(open_library(file), "ggml_backend_score");
    return score ? score() : 1;
}

fs::path best_cpu_module(const fs::path & folder) {
    fs::path best;
    int      most = 0;
    for (const auto & entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.rfind("libggml-cpu", 0) != 0 || entry.path().extension() != ".so") {
            continue;
        }
        if (const int n = score(entry.path()); n > most) {
            most = n;
            best = entry.path();
        }
    }
    if (best.empty()) {
        throw std::runtime_error(folder.string() + " has no libggml-cpu*.so that this machine can run.");
    }
    return best;
}

} // namespace

backend_module load_module(const fs::path & file_or_folder) {
    const fs::path file = fs::is_directory(file_or_folder) ? best_cpu_module(file_or_folder) : file_or_folder;
    void *         handle = open_library(file);
    const auto init = (ggml_backend_reg_t (*)()) dlsym(handle, "ggml_backend_init");
    backend_module m;
    m.reg = init ? init() : nullptr;
    if (!m.reg) {
        throw std::runtime_error(file.string() + " is no backend of ggml, or finds nothing that it can use.");
    }
    m.paged = (const ggml_paged_backend *) ggml_backend_reg_get_proc_address(m.reg, GGML_PAGED_PROC_NAME);
    return m;
}

engine::engine(const modules & m, uint32_t threads, bool alloc) : alloc_(alloc) {
    std::vector<ggml_backend_t> backends;
    if (m.device.reg) {
        device_ = open_backend(m.device);
        backends.push_back(device_);
    }
    cpu_ = open_backend(m.cpu);
    set_threads(m.cpu, cpu_, threads);
    backends.push_back(cpu_);
    std::vector<ggml_backend_buffer_type_t> types;
    for (ggml_backend_t b : backends) {
        types.push_back(ggml_backend_get_default_buffer_type(b));
    }
    sched_ = ggml_backend_sched_new_ext(backends.data(), types.data(), (int) backends.size(), GRAPH_NODES_MAX, false, true, alloc);
}

engine::~engine() {
    ggml_backend_sched_free(sched_);
    ggml_backend_free(cpu_);
    if (device_) {
        ggml_backend_free(device_);
    }
}

size_t engine::reserved() const {
    return ggml_backend_sched_get_attempted_buffer_size(sched_, computing());
}
