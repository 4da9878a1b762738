// The cost of committing and uncommitting a granule of host memory, for the smallest and the
// largest granule. Prints a table, or with --json an object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvc.h"

namespace {

constexpr size_t mib = 1u << 20;

struct Result {
    size_t granule;
    double commit_ns, again_ns, uncommit_ns, kept_ns; // of one granule, medians
};

void require(int rc) {
    if (rc != KVC_OK) {
        fprintf(stderr, "bench_elastic: %s\n", kvc_last_error());
        exit(1);
    }
}

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> & times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

template <class F>
double each(size_t n, F f) {
    std::vector<double> times(n);
    for (size_t i = 0; i < n; i++) {
        const double begin = now_ns();
        require(f(i));
        times[i] = now_ns() - begin;
    }
    return median(times);
}

Result measure(size_t granule, size_t bytes) {
    const size_t n = bytes / granule;
    kvc_options_t options{};
    options.granule_bytes = granule;
    kvc_pool_t *   pool = nullptr;
    kvc_buffer_t * b    = nullptr;
    require(kvc_pool_create_ex(bytes, KVC_CPU, &options, &pool));
    require(kvc_buffer_alloc(pool, bytes, &b));
    Result r{};
    r.granule     = granule;
    r.commit_ns   = each(n, [&](size_t i) { return kvc_buffer_commit(b, i * granule, granule); });
    r.again_ns    = each(n, [&](size_t i) { return kvc_buffer_commit(b, i * granule, granule); });
    r.uncommit_ns = each(n, [&](size_t i) { return kvc_buffer_uncommit(b, i * granule, granule); });
    require(kvc_buffer_free(b));
    require(kvc_pool_destroy(pool));

    options.reserve_bytes = bytes;
    require(kvc_pool_create_ex(bytes, KVC_CPU, &options, &pool));
    require(kvc_buffer_alloc(pool, bytes, &b));
    require(kvc_buffer_commit(b, 0, bytes));
    require(kvc_buffer_uncommit(b, 0, bytes));
    r.kept_ns = each(n, [&](size_t i) { return kvc_buffer_commit(b, i * granule, granule); });
    require(kvc_buffer_free(b));
    require(kvc_pool_destroy(pool));
    return r;
}

}  // namespace

int main(int argc, char ** argv) {
    const bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    const std::vector<Result> results{measure(KVC_GRANULE_MIN, 16 * mib), measure(KVC_GRANULE_CPU_DEFAULT, 64 * mib),
                                      measure(KVC_GRANULE_CPU_MAX, 512 * mib)};
    if (!json) {
        printf("%10s %12s %12s %12s %14s   ns of one granule, medians\n", "granule", "commit", "commit again", "uncommit", "commit prealloc");
    }
    for (size_t i = 0; i < results.size(); i++) {
        const Result & r = results[i];
        printf(json ? "%s{\"granule_bytes\": %zu, \"commit_ns\": %.0f, \"commit_again_ns\": %.0f, \"uncommit_ns\": %.0f, \"commit_prealloc_ns\": %.0f}%s"
                    : "%s%10zu %12.0f %12.0f %12.0f %14.0f%s",
               json && i == 0 ? "{\"host\": [" : "", r.granule, r.commit_ns, r.again_ns, r.uncommit_ns, r.kept_ns,
               !json ? "\n" : i + 1 < results.size() ? ", " : "]}\n");
    }
    return 0;
}
