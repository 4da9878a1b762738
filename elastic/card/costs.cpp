#include "costs.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace card {

namespace {

constexpr size_t calls = 64;

template <class F>
double median_us(F f) {
    std::vector<double> times(calls);
    for (size_t i = 0; i < calls; i++) {
        const auto begin = std::chrono::steady_clock::now();
        require(f(i), "measuring");
        times[i] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    }
    std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
    return times[calls / 2];
}

}  // namespace

Costs measure(Device & device, size_t granules, bool bare) {
    kvc_options_t  options{};
    kvc_stats_t    stats;
    kvc_pool_t *   pool = nullptr;
    kvc_buffer_t * b    = nullptr;
    const size_t   va   = size_t(8) << 30;
    options.flags         = bare ? KVC_BARE : 0;
    options.reserve_bytes = va;
    require(kvc_pool_create_ex(va, device.ordinal(), &options, &pool), "making a pool");
    require(kvc_pool_stats(pool, &stats), "asking for the granule");
    const size_t each = granules * stats.granule_bytes;
    uint64_t free_bytes, total_bytes;
    require(kvc_pool_memory(pool, &free_bytes, &total_bytes), "asking for free memory");
    Costs c{stats.granule_bytes, granules, 0, 0, 0};
    if (calls * each > free_bytes / 2) {
        require(kvc_pool_destroy(pool), "freeing a pool");
        return c;
    }
    require(kvc_buffer_alloc(pool, calls * each, &b), "reserving addresses");
    c.commit_us   = median_us([&](size_t i) { return kvc_buffer_commit(b, i * each, each); });
    c.uncommit_us = median_us([&](size_t i) { return kvc_buffer_uncommit(b, i * each, each); });
    c.kept_us     = median_us([&](size_t i) { return kvc_buffer_commit(b, i * each, each); });
    require(kvc_buffer_free(b), "freeing a buffer");
    require(kvc_pool_destroy(pool), "freeing a pool");
    return c;
}

}  // namespace card
