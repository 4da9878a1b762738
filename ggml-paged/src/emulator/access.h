// Which accesses of device memory are ordered, and which race. Streams and the threads of
// the host have vector clocks, passed on by events; two accesses of the same bytes, one of
// them a write, must be ordered by them. The races found do not depend on luck, as wrong
// results do: that another thread happened to have waited for an event orders nothing here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace emulator {

constexpr uint32_t streams = 3;

using vector_clock = std::array<uint64_t, streams>;

struct access {
    const uint8_t * begin;
    const uint8_t * end;
    bool            write;
    uint32_t        stream;
    uint64_t        tick;   // of its stream when it happened
    const char *    what;
};

class access_log {
public:
    // enqueue starts an operation on a stream: it comes after all that the calling thread
    // and the stream have seen.
    void enqueue(uint32_t stream);
    // touch notes an access of the last operation enqueued on a stream. Empty, or a
    // sentence about the access that it races with.
    std::string touch(uint32_t stream, const void * begin, size_t bytes, bool write, const char * what);

    // give_back forgets memory that the calling thread frees. Empty, or a sentence about an
    // access that the thread has not seen the end of.
    std::string give_back(const void * begin, size_t bytes);

    const vector_clock & at(uint32_t stream) const { return clock_[stream]; }
    // pass makes a stream, pass_to_host the calling thread come after accesses up to a clock.
    void pass(uint32_t to, const vector_clock & seen);
    void pass_to_host(const vector_clock & seen);

private:
    bool before(const access & a, uint32_t stream) const { return a.tick <= clock_[stream][a.stream]; }

    vector_clock        clock_[streams] = {};
    std::map<std::thread::id, vector_clock> host_;
    std::vector<access> log_;
};

} // namespace emulator
