#include "cpu.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "settings.h"

namespace fakegpu {

static std::vector<std::string> libraries() {
    Dl_info self;
    if (dladdr((void *) &cpu_device, &self) == 0) {
        return {};
    }
    const std::string path = self.dli_fname;
    const std::string dir  = path.substr(0, path.rfind('/') + 1);
    glob_t found{};
    glob((dir + "libggml-cpu*.so").c_str(), 0, nullptr, &found);
    glob((dir + "../libggml-cpu*.so").c_str(), found.gl_pathc > 0 ? GLOB_APPEND : 0, nullptr, &found);
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    return paths;
}

static int score(void * library) {
    const auto score_of = (ggml_backend_score_t) dlsym(library, "ggml_backend_score");
    return score_of != nullptr ? score_of() : 1;
}

// Ollama loads the same library by the same rule. It is one instance where the file is one.
static void * best_library() {
    void * best      = nullptr;
    int    best_score = 0;
    for (const std::string & path : libraries()) {
        void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        const int s = library != nullptr ? score(library) : 0;
        if (s > best_score) {
            std::swap(best, library);
            best_score = s;
        }
        if (library != nullptr) {
            dlclose(library);
        }
    }
    return best;
}

static ggml_backend_reg_t cpu_registry() {
    void * library  = best_library();
    const auto init = library != nullptr ? (ggml_backend_init_t) dlsym(library, "ggml_backend_init") : nullptr;
    if (init == nullptr) {
        fprintf(stderr, "fakegpu: no libggml-cpu-*.so beside the module or one folder above\n");
        abort();
    }
    return init();
}

ggml_backend_dev_t cpu_device() {
    static ggml_backend_reg_t registry = cpu_registry();
    return registry->iface.get_device(registry, 0);
}

ggml_backend_t new_cpu_backend() {
    ggml_backend_dev_t device = cpu_device();
    ggml_backend_t backend    = device->iface.init_backend(device, nullptr);
    const auto set_threads    = (ggml_backend_set_n_threads_t) device->reg->iface.get_proc_address(device->reg, "ggml_backend_set_n_threads");
    set_threads(backend, settings().threads);
    return backend;
}

}  // namespace fakegpu
