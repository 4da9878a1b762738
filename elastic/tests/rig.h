// Pools for tests: over host memory, and over the fake driver.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "fakecuda.h"
#include "kvc.h"

namespace rig {

constexpr size_t page = 4096; // the granule of most tests, also the fake driver's

// A Pool is destroyed with its test, which fails where that fails.
class Pool {
public:
    Pool(size_t va, int device, kvc_options_t options) {
        if (options.granule_bytes == 0 && device == KVC_CPU) {
            options.granule_bytes = page;
        }
        options.cuda_library = KVC_FAKE_LIBRARY;
        rc = kvc_pool_create_ex(va, device, &options, &handle);
    }
    ~Pool() {
        if (handle != nullptr) {
            EXPECT_EQ(KVC_OK, kvc_pool_destroy(handle)) << kvc_last_error();
        }
    }
    Pool(const Pool &) = delete;

    kvc_stats_t stats() const {
        kvc_stats_t s;
        EXPECT_EQ(KVC_OK, kvc_pool_stats(handle, &s)) << kvc_last_error();
        return s;
    }

    kvc_pool_t * handle = nullptr;
    int rc = KVC_OK;
};

class Buffer {
public:
    Buffer(Pool & pool, size_t size) {
        rc   = kvc_buffer_alloc(pool.handle, size, &handle);
        base = rc == KVC_OK ? (uint8_t *) kvc_buffer_get_base(handle) : nullptr;
    }
    ~Buffer() {
        if (handle != nullptr) {
            EXPECT_EQ(KVC_OK, kvc_buffer_free(handle)) << kvc_last_error();
        }
    }
    Buffer(const Buffer &) = delete;

    kvc_buffer_t * handle = nullptr;
    uint8_t * base = nullptr;
    int rc = KVC_OK;
};

inline bool all(const uint8_t * at, size_t size, uint8_t value) {
    return size == 0 || (at[0] == value && memcmp(at, at + 1, size - 1) == 0);
}

// A Fake begins a fake device anew, and at its end requires that nothing is left and no rule
// was broken.
class Fake {
public:
    explicit Fake(size_t pages, size_t granularity = page) {
        fakecuda_config c{};
        c.granularity = granularity;
        c.memory      = pages * granularity;
        fakecuda_reset(&c);
    }
    ~Fake() {
        fakecuda_fail(nullptr, 0, 0, 0);
        const fakecuda_state s = state();
        EXPECT_EQ(0u, s.handles + s.mappings + s.reservations + s.contexts + s.streams + s.pushed)
            << s.handles << " handles, " << s.mappings << " mappings, " << s.reservations << " reservations, " << s.contexts
            << " contexts, " << s.streams << " streams, " << s.pushed << " pushed";
        EXPECT_EQ(0u, s.violations) << fakecuda_violation();
    }
    static fakecuda_state state() {
        fakecuda_state s;
        fakecuda_get_state(&s);
        return s;
    }
};

}  // namespace rig
