#include "history.h"

#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <vector>

namespace card {

namespace {

constexpr size_t buffers_count = 4, buffer_granules = 12;
constexpr size_t steps = 40; // of one history

class History {
public:
    History(Device & device, uint64_t seed, Played & played)
        : device_(device), random_(seed), played_(played), bare_end_(seed % 2 != 0) {
        kvc_options_t options{};
        kvc_stats_t   stats;
        require(kvc_pool_create_ex(size_t(4) << 30, device.ordinal(), &options, &pool_), "making a pool");
        require(kvc_pool_stats(pool_, &stats), "asking for the granule");
        granule_ = stats.granule_bytes;
        require(kvc_pool_destroy(pool_), "freeing a pool");
        options.reserve_bytes = pick(5) * granule_;
        options.flags         = bare_end_ ? KVC_BARE_END : 0;
        require(kvc_pool_create_ex(buffers_count * buffer_granules * granule_, device.ordinal(), &options, &pool_), "making a pool");
        for (auto & b : buffers_) {
            require(kvc_buffer_alloc(pool_, buffer_granules * granule_, &b.handle), "reserving addresses");
            b.base = (uint8_t *) kvc_buffer_get_base(b.handle);
        }
    }

    ~History() {
        device_.wait();
        for (auto & b : buffers_) {
            require(kvc_buffer_free(b.handle), "freeing a buffer");
        }
        require(kvc_pool_destroy(pool_), "freeing a pool");
    }

    void run() {
        for (size_t i = 0; i < steps && played_.wrong[0] == '\0'; i++) {
            step();
            played_.steps++;
        }
    }

private:
    struct Buffer {
        kvc_buffer_t * handle = nullptr;
        uint8_t * base = nullptr;
        std::map<size_t, uint8_t> held; // committed granules
        size_t end() const { return held.empty() ? 0 : held.rbegin()->first + 1; }
    };

    size_t pick(size_t n) { return random_() % n; }

    void step() {
        Buffer &     b     = buffers_[pick(buffers_count)];
        const size_t first = pick(buffer_granules), count = 1 + pick(buffer_granules - first);
        const bool   commit = pick(5) < 3;
        load(commit ? nullptr : &b, first, count);
        if (commit) {
            require(kvc_buffer_commit(b.handle, first * granule_, count * granule_), "committing");
            played_.commits++;
            fill(b, first, count);
        } else {
            require(kvc_buffer_uncommit(b.handle, first * granule_, count * granule_), "uncommitting");
            played_.uncommits++;
            b.held.erase(b.held.lower_bound(first), b.held.lower_bound(first + count));
        }
        look();
    }

    // load queues work behind which the change has to wait: of all committed granules but those
    // of `leaving` that the change takes, and of uncommitted ones that may be touched, which take any
    // bytes.
    void load(const Buffer * leaving, size_t first, size_t count) {
        if (pick(2) == 0) {
            device_.busy();
        }
        for (auto & b : buffers_) {
            for (size_t g = 0; g < buffer_granules; g++) {
                const bool taken = &b == leaving && g >= first && g < first + count;
                const auto held  = b.held.find(g);
                if (held != b.held.end() && !taken) {
                    held->second = uint8_t(1 + pick(255));
                    device_.queue(b.base + g * granule_, granule_, held->second);
                } else if (held == b.held.end() && pick(3) == 0 && (!bare_end_ || g < b.end())) {
                    device_.queue(b.base + g * granule_, granule_, 0xEE);
                }
            }
        }
    }

    // fill requires that new granules hold zeros, and gives each a byte of its own.
    void fill(Buffer & b, size_t first, size_t count) {
        for (size_t g = first; g < first + count; g++) {
            if (b.held.count(g) == 0) {
                check(b, g, 0, "was committed and holds no zeros");
                b.held[g] = uint8_t(1 + pick(255));
                device_.queue(b.base + g * granule_, granule_, b.held[g]);
            }
        }
    }

    void look() {
        device_.wait();
        for (const auto & b : buffers_) {
            for (const auto & [g, value] : b.held) {
                check(b, g, value, "holds other bytes");
            }
        }
    }

    void check(const Buffer & b, size_t g, uint8_t value, const char * how) {
        played_.granules_read++;
        if (played_.wrong[0] == '\0' && !device_.holds(b.base + g * granule_, granule_, value)) {
            snprintf(played_.wrong, sizeof played_.wrong, "granule %zu of buffer %zu %s", g, size_t(&b - buffers_), how);
        }
    }

    Device &        device_;
    std::mt19937_64 random_;
    Played &        played_;
    const bool      bare_end_;
    size_t          granule_ = 0;
    kvc_pool_t *    pool_    = nullptr;
    Buffer          buffers_[buffers_count];
};

}  // namespace

Played play(Device & device, uint64_t seed, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    Played played;
    do {
        History(device, seed++, played).run();
    } while (played.wrong[0] == '\0' && std::chrono::steady_clock::now() < end);
    return played;
}

}  // namespace card
