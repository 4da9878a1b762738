// A CUDA driver for tests, of the functions in src/cuda/driver.h. Its device memory is a memfd
// of a fixed size, and its addresses are mappings of it: bytes written through one mapping of a
// handle are seen through every other. It is as strict as the reference manual:
//
//   - new memory holds 0xA5, never zeros;
//   - a mapped range faults until access was set;
//   - sizes, offsets and addresses are multiples of the granularity;
//   - unmapping takes exactly one mapping, mapping takes a range without any;
//   - a handle that was released keeps its memory while it is mapped;
//   - calls that need a context fail without one.
//
// Calls that break a rule fail, and count as violations. Any function can be made to fail.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fakecuda_config {
    size_t memory;      // bytes of the device; 0: 64 MiB
    size_t granularity; // bytes; 0: 2 MiB
    int    no_vmm;      // the device has no virtual memory management
    int    devices;     // 0: 1
} fakecuda_config;

typedef struct fakecuda_state {
    uint64_t handles, mappings, reservations, contexts, streams; // alive
    uint64_t pushed;     // contexts on this thread's stack
    uint64_t used;       // bytes of device memory
    uint64_t violations;
    uint64_t calls;      // of all functions
} fakecuda_state;

// In a process that is not a test, FAKECUDA_MEMORY, FAKECUDA_GRANULARITY and FAKECUDA_DEVICES are these.
//
// fakecuda_reset begins anew, and forgets everything that is alive.
void fakecuda_reset(const fakecuda_config * config);

// fakecuda_fail makes call number `nth` (1 is the next one) of a function fail with a result,
// and the `more` calls after it. name NULL: of all functions. nth 0: no failures.
void fakecuda_fail(const char * name, uint64_t nth, int result, uint64_t more);

// fakecuda_failed tells how many calls failed that way since fakecuda_fail.
uint64_t fakecuda_failed(void);

uint64_t fakecuda_calls(const char * name);
void fakecuda_get_state(fakecuda_state * out);

// fakecuda_violation is the sentence of the first violation, or "".
const char * fakecuda_violation(void);

// fakecuda_queue sets the device's work: cuCtxSynchronize returns when `wait` does, and a mapping
// that is taken away while `busy` says that work is queued or runs ends the process, as an
// access by a kernel may on a device. Either may be NULL: nothing is ever queued.
void fakecuda_queue(void (*wait)(void *), int (*busy)(void *), void * queue);

// fakecuda_shown tells what is at an address: 0 nothing that can be accessed, else a number of
// the memory there plus one. Two addresses with the same number show the same memory.
uint64_t fakecuda_shown(const void * address);

#ifdef __cplusplus
}
#endif
