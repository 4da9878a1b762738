// The backends of test_paged_attn, each of which computes an op: the CPU, the CUDA kernels
// under the emulator, or a CUDA device. The pager, the batch and the op are the same for
// all of them; a backend gets an op and host memory and handles both as the runner does.
//
// A backend that is not the CPU's lives in a CMake library of its own, which defines its
// function and is linked where it exists: kvp-backend-emulated, kvp-backend-cuda.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_attn.h"

struct test_backend {
    const char * name;

    // Largest error allowed against f64, in units of max|V|.
    double error_max;

    // bits_repeat says that another budget, number of threads and seed give the same bits.
    bool bits_repeat;

    // GFLOP of the largest case of a quick test.
    double work_max;

    // missing says in a sentence why this machine cannot run the backend; NULL where it
    // can. NULL as a function: every machine can.
    const char * (*missing)();

    // refuses says in a sentence why the backend cannot compute ops of such a layer with
    // so many query heads; NULL where it can.
    const char * (*refuses)(const kvp_layer_desc * layer, uint32_t heads);

    // prepare changes settings of the pager before it is made, as for a page-locked arena.
    // NULL: nothing to change.
    void (*prepare)(kvp_config * config);

    // forward computes the op: pointers in io are to host memory, out is written before it
    // returns. threads counts the CPU's threads where the backend uses any; seed chooses
    // among the orders that the backend may take where it has a choice. 0 or a negative
    // errno with a sentence in kvp_last_error.
    int (*forward)(kvp_op * op, const kvp_io * io, uint32_t threads, uint64_t seed);
};

const test_backend * test_backend_cpu();
const test_backend * test_backend_emulated();  // from kvp-backend-emulated
const test_backend * test_backend_tensor();    // from kvp-backend-emulated
const test_backend * test_backend_hybrid();    // from kvp-backend-emulated
const test_backend * test_backend_cuda();      // from kvp-backend-cuda

// test_backends are those that were built in, the CPU's first.
std::vector<const test_backend *> test_backends();

// test_backend_find returns the backend of a name: NULL where it is not known or was not
// built in.
const test_backend * test_backend_find(const char * name);
