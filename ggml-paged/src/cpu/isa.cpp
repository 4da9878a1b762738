// The choice of the instruction set, made once at the first use.
#include <cstdlib>
#include <cstring>

#include "cpu/kernels.h"
#include "paged_attn.h"

namespace kvp {

namespace {

bool machine_has(const cpu_kernels * kernels) {
#if defined(__x86_64__)
    if (kernels == kernels_avx512()) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
    if (kernels == kernels_avx2()) {
        // Every processor with AVX2 has F16C; old compilers cannot test for F16C.
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
#else
    (void) kernels;  // the compiler's own target is always there
#endif
    return true;
}

const cpu_kernels & choose() {
    const cpu_kernels * const all[] = {kernels_avx512(), kernels_avx2(), kernels_neon(), kernels_generic()};
    const char * wanted = std::getenv("KVP_ISA");
    // An unknown name, or one of another machine, does not change the choice.
    for (int pass = wanted ? 0 : 1; pass < 2; pass++) {
        for (const cpu_kernels * kernels : all) {
            if (kernels && machine_has(kernels) && (pass == 1 || std::strcmp(kernels->name, wanted) == 0)) {
                return *kernels;
            }
        }
    }
    return *kernels_generic();
}

} // namespace

const cpu_kernels & kernels_in_use() {
    static const cpu_kernels & kernels = choose();
    return kernels;
}

} // namespace kvp

const char * kvp_cpu_isa(void) {
    return kvp::kernels_in_use().name;
}
