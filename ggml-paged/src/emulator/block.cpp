#include "emulator/block.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "emulator/fiber.h"

namespace emulator {

__thread position here;

namespace {

constexpr uint32_t warp = 32;
constexpr size_t   red_zone = 1024;
constexpr uint8_t  poison = 0xff;  // floats are NaN

enum class thread_state { ready, at_barrier, at_shuffle, at_mma, done };

struct cuda_thread {
    fiber *      stack = nullptr;
    thread_state state = thread_state::ready;
    const char * file = "";
    int          line = 0;
    float        given = 0, taken = 0;
    int          lane_mask = 0;
    mma_operands * operands = nullptr;
    bool         votes = false, vote = false;  // at a barrier with a vote, and the thread's vote
};

struct block {
    const std::function<void()> * kernel = nullptr;
    const order * how = nullptr;
    size_t        shared_bytes = 0;
    std::string   failure;
    std::vector<cuda_thread> threads;
    std::vector<uint32_t>    ready;
    std::vector<uint32_t>    arrived;  // lanes of each warp at a shuffle or an mma
    std::unique_ptr<uint8_t[]> shared{new uint8_t[shared_memory_max + red_zone + 64]};

    uint8_t * shared_base() {
        const uintptr_t p = reinterpret_cast<uintptr_t>(shared.get());
        return reinterpret_cast<uint8_t *>((p + 63) / 64 * 64);
    }
};

thread_local block * running = nullptr;

std::string site(const char * file, int line) {
    const char * slash = std::strrchr(file, '/');
    return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
}

void thread_main() {
    (*running->kernel)();
    running->threads[here.thread].state = thread_state::done;
    fiber_yield();
}

void fail(block & b, const std::string & sentence) {
    if (b.failure.empty()) {
        b.failure = sentence;
    }
}

std::string where(const block & b, uint32_t t) {
    const cuda_thread & thread = b.threads[t];
    const std::string name = "thread " + std::to_string(t);
    switch (thread.state) {
    case thread_state::at_barrier: return name + " waits at the barrier " + site(thread.file, thread.line);
    case thread_state::at_shuffle: return name + (thread.lane_mask ? " waits in a shuffle" : " waits for its warp");
    case thread_state::at_mma:     return name + " waits in an mma";
    case thread_state::done:       return name + " has returned";
    default:                       return name + " runs";
    }
}

bool in_exchange(const cuda_thread & t) {
    return t.state == thread_state::at_shuffle || t.state == thread_state::at_mma;
}

void multiply_lanes(cuda_thread * threads) {
    mma_operands lanes[warp];
    float        d[warp][4];
    for (uint32_t lane = 0; lane < warp; ++lane) {
        lanes[lane] = *threads[lane].operands;
    }
    multiply(lanes, d);
    for (uint32_t lane = 0; lane < warp; ++lane) {
        std::memcpy(threads[lane].operands->c, d[lane], sizeof d[lane]);
    }
}

// All lanes have arrived: exchange, and let the warp go on.
void finish_exchange(block & b, uint32_t w) {
    cuda_thread * threads = &b.threads[w * warp];
    for (uint32_t lane = 0; lane < warp; ++lane) {
        cuda_thread & t = threads[lane];
        if (t.state != threads[0].state || t.lane_mask != threads[0].lane_mask) {
            fail(b, "lanes of a warp are in different shuffles");
            return;
        }
        t.taken = threads[lane ^ uint32_t(t.lane_mask)].given;
    }
    if (threads[0].state == thread_state::at_mma) {
        multiply_lanes(threads);
    }
    for (uint32_t lane = 0; lane < warp; ++lane) {
        threads[lane].state = thread_state::ready;
        b.ready.push_back(w * warp + lane);
    }
    b.arrived[w] = 0;
}

// No thread can run: all threads have ended or are at the same barrier, or the kernel has
// a fault.
bool finish_barrier(block & b) {
    const cuda_thread & first = b.threads[0];
    for (uint32_t t = 0; t < b.threads.size(); ++t) {
        const cuda_thread & other = b.threads[t];
        const bool same = other.state == first.state && other.line == first.line && other.file == first.file
            && other.votes == first.votes;
        if (in_exchange(other) || (!same && first.state != thread_state::done)
            || other.state != first.state) {
            fail(b, where(b, 0) + " while " + where(b, t));
            return false;
        }
    }
    if (first.state == thread_state::done) {
        return false;
    }
    const bool any = std::any_of(b.threads.begin(), b.threads.end(), [](const cuda_thread & t) { return t.vote; });
    for (uint32_t t = 0; t < b.threads.size(); ++t) {
        b.threads[t].state = thread_state::ready;
        b.threads[t].vote = any;
        b.ready.push_back(t);
    }
    return true;
}

void run_block(block & b, std::mt19937_64 & random) {
    std::memset(b.shared_base(), poison, shared_memory_max + red_zone);
    b.shared_bytes = 0;
    b.ready.clear();
    std::fill(b.arrived.begin(), b.arrived.end(), 0u);
    for (uint32_t t = 0; t < b.threads.size(); ++t) {
        b.threads[t] = cuda_thread();
        b.threads[t].stack = fiber_start(t, thread_main);
        b.ready.push_back(t);
    }
    while (b.failure.empty()) {
        if (b.ready.empty() && !finish_barrier(b)) {
            break;
        }
        const size_t pick = random() % b.ready.size();
        here.thread = b.ready[pick];
        b.ready[pick] = b.ready.back();
        b.ready.pop_back();
        fiber_resume(b.threads[here.thread].stack);
        if (in_exchange(b.threads[here.thread])) {
            const uint32_t w = here.thread / warp;
            if (++b.arrived[w] == warp) {
                finish_exchange(b, w);
            }
        }
    }
    const uint8_t * end = b.shared_base() + b.shared_bytes;
    if (std::any_of(end, end + red_zone, [](uint8_t x) { return x != poison; })) {
        fail(b, "a kernel wrote past the end of its shared memory");
    }
}

} // namespace

std::string run(const grid & grid, const order & order, const std::function<void()> & kernel) {
    if (grid.threads == 0 || grid.threads % warp || grid.threads > fiber_stacks) {
        return "a block of " + std::to_string(grid.threads) + " threads cannot be emulated";
    }
    block b;
    b.kernel = &kernel;
    b.how = &order;
    b.threads.resize(grid.threads);
    b.arrived.resize(grid.threads / warp);
    std::mt19937_64 random(order.seed);
    // A device runs blocks in any order, so results may not depend on it.
    const uint64_t n = uint64_t(grid.x) * grid.y * grid.z;
    std::vector<uint64_t> blocks(n);
    for (uint64_t i = 0; i < n; ++i) {
        blocks[i] = i;
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    block * const outer = running;
    running = &b;
    for (uint64_t i : blocks) {
        here.block[0] = uint32_t(i % grid.x);
        here.block[1] = uint32_t(i / grid.x % grid.y);
        here.block[2] = uint32_t(i / grid.x / grid.y);
        run_block(b, random);
        if (!b.failure.empty()) {
            break;
        }
    }
    running = outer;
    return b.failure;
}

void * shared_memory(size_t bytes) {
    if (bytes > shared_memory_max) {
        fail(*running, "a kernel asks for " + std::to_string(bytes) + " bytes of shared memory, over 48 KiB");
        fiber_yield();
    }
    running->shared_bytes = std::max(running->shared_bytes, bytes);
    return running->shared_base();
}

// Waits for all threads, and returns their common vote, or this thread's vote where the
// barrier is left out.
static bool arrive_and_wait(bool votes, bool vote, const char * file, int line) {
    block & b = *running;
    if (b.how->sites) {
        b.how->sites->insert(site(file, line));
    }
    if (!b.how->drop_barrier.empty() && site(file, line) == b.how->drop_barrier) {
        return vote;
    }
    cuda_thread & t = b.threads[here.thread];
    t.state = thread_state::at_barrier;
    t.file = file;
    t.line = line;
    t.votes = votes;
    t.vote = vote;
    fiber_yield();
    return t.vote;
}

void barrier(const char * file, int line) { arrive_and_wait(false, false, file, line); }
bool barrier_or(bool x, const char * file, int line) { return arrive_and_wait(true, x, file, line); }

float shuffle_xor(float x, int lane_mask) {
    cuda_thread & t = running->threads[here.thread];
    t.state = thread_state::at_shuffle;
    t.given = x;
    t.lane_mask = lane_mask;
    fiber_yield();
    return t.taken;
}

// A shuffle in which every lane keeps its own.
void warp_barrier() { shuffle_xor(0, 0); }

void mma(mma_operands * operands) {
    cuda_thread & t = running->threads[here.thread];
    t.state = thread_state::at_mma;
    t.lane_mask = 0;
    t.operands = operands;
    fiber_yield();
}

} // namespace emulator
