// Ollama's part: backends that are loaded as modules, weights in the memory of the device
// that computes, and a scheduler over all backends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-paged.h"
#include "ggml.h"

// A module is a backend library. It stays loaded, as in Ollama.
struct backend_module {
    ggml_backend_reg_t         reg = nullptr;
    const ggml_paged_backend * paged = nullptr;  // NULL: it does not have the op
};

// load_module throws std::runtime_error with the reason. Of a folder it loads the CPU module
// that is best for this machine, as Ollama does.
backend_module load_module(const std::filesystem::path & file_or_folder);

struct modules {
    backend_module cpu;
    backend_module device;  // without reg: there is none, and the CPU computes
    const backend_module & computing() const { return device.reg ? device : cpu; }
};

class engine {
public:
    // With alloc false only sizes are found out, as Ollama does to fit a model: from then on
    // buffers of these backends have no memory, until the next engine is made.
    engine(const modules & m, uint32_t threads, bool alloc = true);
    ~engine();
    engine(const engine &) = delete;
    engine & operator=(const engine &) = delete;

    ggml_backend_sched_t sched() const { return sched_; }
    ggml_backend_t       computing() const { return device_ ? device_ : cpu_; }
    ggml_backend_t       cpu() const { return cpu_; }
    bool                 allocates() const { return alloc_; }
    bool                 on_device() const { return device_ != nullptr; }

    // reserved is the memory in bytes that the last reservation takes of the computing
    // backend.
    size_t reserved() const;

private:
    const bool           alloc_;
    ggml_backend_t       cpu_ = nullptr, device_ = nullptr;
    ggml_backend_sched_t sched_ = nullptr;
};
