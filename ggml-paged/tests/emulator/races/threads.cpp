// emulator/block.h once more, every CUDA thread a thread of its own, for the thread
// sanitizer. The sanitizer finds the races that compute-sanitizer's racecheck finds on a
// card, writes of the same value by several threads included. Barriers of a block order
// all memory, those of a warp its lanes' memory; a shuffle orders none, as CUDA says, so
// it is made of relaxed atomics, which tell the sanitizer nothing, and so is an mma.
#include "emulator/block.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

namespace emulator {

__thread position here;

namespace {

constexpr uint32_t warp = 32;

// A meeting of some threads, again and again.
class meeting {
public:
    explicit meeting(uint32_t threads) : threads_(threads) {}

    bool meet(bool vote) {
        std::unique_lock<std::mutex> lock(mutex_);
        const uint64_t round = round_;
        any_ |= vote;
        if (++here_ == threads_) {
            here_ = 0;
            answer_ = any_;
            any_ = false;
            round_++;
            all_.notify_all();
        } else {
            all_.wait(lock, [&] { return round_ != round; });
        }
        return answer_;
    }

private:
    const uint32_t          threads_;
    std::mutex              mutex_;
    std::condition_variable all_;
    uint32_t                here_ = 0;
    uint64_t                round_ = 0;
    bool                    any_ = false, answer_ = false;
};

// A lane's value in its n-th shuffle has n in the upper half and a float in the lower
// half.
struct lanes {
    std::atomic<uint64_t> given[warp] = {};
    std::atomic<uint64_t> taken[warp] = {};  // the last n that was taken from the lane
    meeting               barrier{warp};
    // The registers of the n-th mma, each with n in the upper half. Two of each: a lane
    // begins the next mma but one after all have read this one's.
    std::atomic<uint64_t> registers[2][warp][6] = {};
    uint64_t              mmas[warp] = {};
};

struct block {
    explicit block(uint32_t threads) : barrier(threads), warps(threads / warp) {}
    meeting            barrier;
    std::vector<lanes> warps;
    std::unique_ptr<uint8_t[]> shared{new uint8_t[shared_memory_max + 64]};
};

thread_local block * running = nullptr;

uint64_t at_least(const std::atomic<uint64_t> & word, uint64_t least) {
    uint64_t x;
    while ((x = word.load(std::memory_order_relaxed)) < least) {
        sched_yield();
    }
    return x;
}

} // namespace

std::string run(const grid & grid, const order &, const std::function<void()> & kernel) {
    for (uint64_t i = 0; i < uint64_t(grid.x) * grid.y * grid.z; ++i) {
        block b(grid.threads);
        std::vector<std::thread> threads;
        for (uint32_t t = 0; t < grid.threads; ++t) {
            threads.emplace_back([&, t] {
                running = &b;
                here = {t, {uint32_t(i % grid.x), uint32_t(i / grid.x % grid.y), uint32_t(i / grid.x / grid.y)}};
                kernel();
            });
        }
        for (std::thread & t : threads) {
            t.join();
        }
    }
    return "";
}

void * shared_memory(size_t) {
    const uintptr_t p = reinterpret_cast<uintptr_t>(running->shared.get());
    return reinterpret_cast<void *>((p + 63) / 64 * 64);
}

void barrier(const char *, int) { running->barrier.meet(false); }
bool barrier_or(bool x, const char *, int) { return running->barrier.meet(x); }
void warp_barrier() { running->warps[here.thread / warp].barrier.meet(false); }

float shuffle_xor(float x, int lane_mask) {
    lanes & w = running->warps[here.thread / warp];
    const uint32_t lane = here.thread % warp, other = lane ^ uint32_t(lane_mask);
    const uint64_t n = (w.given[lane].load(std::memory_order_relaxed) >> 32) + 1;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    at_least(w.taken[lane], n - 1);
    w.given[lane].store(n << 32 | bits, std::memory_order_relaxed);
    bits = uint32_t(at_least(w.given[other], n << 32));
    w.taken[other].store(n, std::memory_order_relaxed);
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

void mma(mma_operands * operands) {
    lanes & w = running->warps[here.thread / warp];
    const uint32_t lane = here.thread % warp;
    const uint64_t n = ++w.mmas[lane];
    auto & registers = w.registers[n % 2];
    for (uint32_t i = 0; i < 6; ++i) {
        registers[lane][i].store(n << 32 | (i < 4 ? operands->a[i] : operands->b[i - 4]), std::memory_order_relaxed);
    }
    mma_operands all[warp] = {};
    for (uint32_t other = 0; other < warp; ++other) {
        for (uint32_t i = 0; i < 6; ++i) {
            (i < 4 ? all[other].a[i] : all[other].b[i - 4]) = uint32_t(at_least(registers[other][i], n << 32));
        }
    }
    std::memcpy(all[lane].c, operands->c, sizeof operands->c);
    float d[warp][4];
    multiply(all, d);
    std::memcpy(operands->c, d[lane], sizeof d[lane]);
}

} // namespace emulator
