// Rows of halves, by conversion instructions where the processor has them.
#include "types/rows.h"

#include "types/half.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define KVP_X86_F16C 1
#include <immintrin.h>
#endif

namespace kvp {

#if defined(KVP_X86_F16C)

// Every processor with AVX2 has F16C, and compilers of all supported versions can ask for
// AVX2 at run time.
static bool has_f16c() {
    static const bool has = __builtin_cpu_supports("avx2") != 0;
    return has;
}

__attribute__((target("avx,f16c"))) static uint32_t halves_f16c(const float * src, uint16_t * dst, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(dst + i), h);
    }
    return i;
}

__attribute__((target("avx,f16c"))) static uint32_t floats_f16c(const uint16_t * src, float * dst, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i *>(src + i));
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(h));
    }
    return i;
}

#endif

#if defined(__aarch64__)

static uint16_t to_half(float f) {
    const __fp16 h = f;
    uint16_t u;
    std::memcpy(&u, &h, sizeof u);
    return u;
}

static float to_float(uint16_t u) {
    __fp16 h;
    std::memcpy(&h, &u, sizeof h);
    return float(h);
}

#else

static uint16_t to_half(float f) { return half_of_float(f); }
static float    to_float(uint16_t h) { return float_of_half(h); }

#endif

void f16_from_floats(const float * src, uint16_t * dst, uint32_t n) {
    uint32_t i = 0;
#if defined(KVP_X86_F16C)
    if (has_f16c()) {
        i = halves_f16c(src, dst, n);
    }
#endif
    for (; i < n; i++) {
        dst[i] = to_half(src[i]);
    }
}

void f16_to_floats(const uint16_t * src, float * dst, uint32_t n) {
    uint32_t i = 0;
#if defined(KVP_X86_F16C)
    if (has_f16c()) {
        i = floats_f16c(src, dst, n);
    }
#endif
    for (; i < n; i++) {
        dst[i] = to_float(src[i]);
    }
}

}  // namespace kvp
