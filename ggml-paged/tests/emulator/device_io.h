// An op whose tensors are in host memory, computed by a GPU: the engine's steps around
// paged_gpu::forward, for tests and for the side-by-side programs.
#pragma once

#include "cuda/forward.h"

// forward_from_host copies the tensors to the device, computes, and copies out back. 0 or
// a negative errno; out is then a copy of the device's out, which should be zeros.
int forward_from_host(kvp_gpu::gpu & g, kvp_gpu::paged_gpu & paged, kvp_op * op, const kvp_io & io);
