#include "emulator/access.h"

#include <algorithm>

namespace emulator {

namespace {

const char * const stream_names[streams] = {"copy", "compute", "write-back"};

} // namespace

static void come_after(vector_clock & clock, const vector_clock & seen) {
    for (uint32_t i = 0; i < streams; ++i) {
        clock[i] = std::max(clock[i], seen[i]);
    }
}

void access_log::enqueue(uint32_t stream) {
    come_after(clock_[stream], host_[std::this_thread::get_id()]);
    ++clock_[stream][stream];
}

void access_log::pass(uint32_t to, const vector_clock & seen) { come_after(clock_[to], seen); }

void access_log::pass_to_host(const vector_clock & seen) { come_after(host_[std::this_thread::get_id()], seen); }

std::string access_log::give_back(const void * memory, size_t bytes) {
    const uint8_t * begin = static_cast<const uint8_t *>(memory);
    const vector_clock & seen = host_[std::this_thread::get_id()];
    std::string race;
    size_t kept = 0;
    for (const access & old : log_) {
        const bool overlap = old.begin < begin + bytes && begin < old.end;
        if (overlap && old.tick > seen[old.stream] && race.empty()) {
            race = std::string("memory was given back while ") + old.what + " on the " + stream_names[old.stream] + " stream may use it";
        }
        if (!overlap) {
            log_[kept++] = old;
        }
    }
    log_.resize(kept);
    return race;
}

std::string access_log::touch(uint32_t stream, const void * memory, size_t bytes, bool write, const char * what) {
    const access now = {static_cast<const uint8_t *>(memory), static_cast<const uint8_t *>(memory) + bytes, write,
                        stream, clock_[stream][stream], what};
    std::string race;
    size_t kept = 0;
    for (size_t i = 0; i < log_.size(); ++i) {
        const access & old = log_[i];
        const bool overlap = old.begin < now.end && now.begin < old.end;
        const bool ordered = before(old, stream);
        if (overlap && (old.write || now.write) && !ordered && race.empty()) {
            race = std::string(what) + " on the " + stream_names[stream] + " stream is not ordered after " + old.what
                 + " on the " + stream_names[old.stream] + " stream, which uses the same memory";
        }
        // An earlier access that this access covers and follows can be dropped: every
        // access that races with the earlier one races with this one, too.
        const bool covered = now.begin <= old.begin && old.end <= now.end && ordered && (now.write || !old.write);
        if (!covered) {
            log_[kept++] = old;
        }
    }
    log_.resize(kept);
    log_.push_back(now);
    return race;
}

} // namespace emulator
