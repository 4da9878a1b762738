// A fiber: a stack of its own that runs until it yields. One thread of CUDA is one fiber.
#pragma once

#include <cstddef>

namespace emulator {

struct fiber;

// fiber_stacks is the largest number of fibers of a thread; stacks are made at the first
// use.
constexpr unsigned fiber_stacks = 1024;

// fiber_start readies fiber number index of this thread; entry must yield in the end and
// never return. The state of an earlier fiber of that number is dropped: kernels own nothing.
fiber * fiber_start(unsigned index, void (*entry)());

// fiber_resume runs a fiber until it yields; fiber_yield goes back to where it was resumed.
void fiber_resume(fiber * f);
void fiber_yield();

} // namespace emulator
