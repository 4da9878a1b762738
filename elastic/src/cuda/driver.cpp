#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kvc.h"
#include "pool/error.h"

namespace kvc::cuda {

namespace {

int find_all(const char * name, void * library, Driver & driver) {
#define KVC_CUDA_FIND(member, symbol, arguments)                                                        \
    driver.member = reinterpret_cast<Result(*) arguments>(dlsym(library, #symbol));                     \
    if (driver.member == nullptr) {                                                                     \
        return fail(KVC_E_NO_VMM, "loading the CUDA driver %s: it has no %s; the driver is too old",    \
                    name, #symbol);                                                                     \
    }
    KVC_CUDA_FUNCTIONS(KVC_CUDA_FIND)
#undef KVC_CUDA_FIND
    return KVC_OK;
}

}  // namespace

int load(const char * name, const Driver ** out) {
    static std::mutex mutex;
    static auto * loaded = new std::map<std::string, std::unique_ptr<Driver>>;
    if (name == nullptr) {
        const char * chosen = getenv("KVC_CUDA_LIBRARY");
        name = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
    }
    std::lock_guard<std::mutex> lock(mutex);
    std::unique_ptr<Driver> & driver = (*loaded)[name];
    if (driver == nullptr) {
        void * library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            return fail(KVC_E_NO_VMM, "loading the CUDA driver: %s", dlerror());
        }
        auto found   = std::make_unique<Driver>();
        const int rc = find_all(name, library, *found);
        if (rc != KVC_OK) {
            dlclose(library);
            return rc;
        }
        driver = std::move(found);
    }
    *out = driver.get();
    return KVC_OK;
}

}  // namespace kvc::cuda
