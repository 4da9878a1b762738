// Device memory: each allocation is a mapping of its own, and ends the process where it is
// used after its end or beyond it.
#pragma once

#include <cstddef>

namespace fakegpu {

// device_malloc returns memory full of NaN. NULL: the device is full.
void * device_malloc(int device, size_t bytes);

// device_free waits for all queued work first, as cudaFree does.
void device_free(void * base);

// Pinned host memory. Queued copies read and write it when their turn comes.
void * pinned_malloc(size_t bytes);
void pinned_free(void * base);
bool is_pinned(const void * address);

}  // namespace fakegpu
