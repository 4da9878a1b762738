// Runs a kernel on the CPU: one block at a time, every CUDA thread a fiber, in an order
// that a seed shuffles. A thread runs until it reaches a barrier, a shuffle or an mma, so that a
// read that no barrier orders after its write sees the former content: poison, or the
// previous tile.
//
// Besides wrong results that come from poison and order, the emulator reports:
//   - a barrier that not all threads of a block reach, or reach at different places;
//   - a shuffle, a barrier or an mma of a warp that not all its lanes take part in;
//   - more than 48 KiB of shared memory, and writes past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "emulator/mma.h"

namespace emulator {

constexpr size_t shared_memory_max = 48 * 1024;

struct grid {
    uint32_t x, y, z;
    uint32_t threads;  // of a block
};

struct order {
    uint64_t    seed = 0;
    std::string drop_barrier;  // "file:line" of a barrier to leave out, to see that it is missed
    std::set<std::string> * sites = nullptr;  // collects the barriers that were met
};

// run executes kernel in every thread of the grid. Empty, or a sentence about the kernel's
// fault; the rest of the grid is not run then.
std::string run(const grid & grid, const order & order, const std::function<void()> & kernel);

// For kernels. The position of the running thread is read very often.
struct position {
    uint32_t thread;
    uint32_t block[3];
};
extern __thread position here;

inline uint32_t thread_index() { return here.thread; }
inline uint32_t block_index(int axis) { return here.block[axis]; }
void *   shared_memory(size_t bytes);
void     barrier(const char * file, int line);
// barrier_or is a barrier that tells every thread whether x is set in any.
bool     barrier_or(bool x, const char * file, int line);
float    shuffle_xor(float x, int lane_mask);
void     warp_barrier();
// mma replaces this lane's c by d.
void     mma(mma_operands * operands);

} // namespace emulator
