// Paged attention on a CUDA device.
//
// Pages of K/V are streamed from the pager to staging slots in device memory, and attended
// there while the next pages are copied. As many pages as fit stay in device memory for
// the next op. The pager is reached only through the table of the op (struct kvp_op_head),
// so this library does not link the one that made the op.
//
// New rows are quantized on the device and put into the staged copies of their pages, so
// attention does not wait for a trip to the host and back. The rows are written to the
// pager before kvp_cuda_forward returns: no other reader may ask for them earlier.
//
// No call may be part of a CUDA graph: the host pins pages during the call.
#pragma once

#include "paged_attn.h"

#ifdef __cplusplus
extern "C" {
#endif

// A context is the staging machinery of one device: streams, events, page-locked buffers.
// One op at a time uses a context.
typedef struct kvp_cuda kvp_cuda;

typedef struct kvp_cuda_config {
    int      device;
    uint32_t slots;    // staging slots of a page each, 2..16; 0: 3
    uint32_t workers;  // threads that attend pages on the CPU meanwhile; 0: none
    // Attention of the workers: that of the queries of an op to the first cells of a page,
    // as m[rows], l[rows], acc[rows][dv] (rows: query * heads + head). io has host pointers.
    // Called by several workers at once, with numbers below `workers`. NULL: kvp_cpu_page,
    // through the op's table.
    // With workers, results depend on measured rates within rounding; without, they are
    // the same bits each time, with pages in device memory, on the host or on disk.
    int   (*cpu_page)(void * user, uint32_t worker, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells,
                      kvp_class cls, const kvp_page * data, float * m, float * l, float * acc);
    void  * cpu_user;
    // Device memory for copies of pages that stay from op to op: a page with a copy is not
    // streamed again until the page changes (kvp_page_version). Memory is taken page by
    // page, while more than vram_keep bytes of the device are free; 0: a sixteenth of its
    // memory, at least 512 MiB. vram_bytes 0: no copies are kept.
    uint64_t vram_bytes, vram_keep;
} kvp_cuda_config;

// Device memory from the engine's pool. Memory must be ordered by the stream of the op,
// and is freed in the reverse order. alloc returns NULL without memory.
typedef struct kvp_cuda_pool {
    void * user;
    void * (*alloc)(void * user, size_t bytes);
    void   (*free)(void * user, void * memory);
} kvp_cuda_pool;

// kvp_cuda_create returns NULL, with a sentence in message, if the device cannot be used.
kvp_cuda * kvp_cuda_create(const kvp_cuda_config * config, char * message, size_t message_bytes);
void       kvp_cuda_free(kvp_cuda * cuda);

// kvp_cuda_refuses returns the reason why ops of such a layer cannot be computed on CUDA,
// or NULL.
const char * kvp_cuda_refuses(const kvp_layer_desc * layer, uint32_t heads);

// kvp_cuda_forward computes an op. Pointers in io are to device memory, strides multiples
// of 4; stream is the cudaStream_t that makes q and uses out; the engine orders it after
// the stream of the previous call. pool may be NULL: the context then allocates by itself
// and keeps its memory. For an op of a batch that was begun with reserve set, the pool's
// memory is taken and given back, and nothing is computed. 0 or a negative errno: the
// error is sticky in the pager, and out is zeros where the device can still be written to.
int kvp_cuda_forward(kvp_cuda * cuda, kvp_op * op, const kvp_io * io, void * stream, const kvp_cuda_pool * pool);

// kvp_cuda_count returns the pages kept in device memory (bytes, copies), and counts
// since the context was made: pages attended from such copies, copies made from
// streamed pages, copies that gave their room to others. The numbers are those after the last
// op; kvp_cuda_count may be called beside one.
typedef struct kvp_cuda_counters {
    uint64_t bytes, copies, hits, fills, evictions;
} kvp_cuda_counters;

void kvp_cuda_count(const kvp_cuda * cuda, kvp_cuda_counters * out);

// For the pager's arena: page-locked memory that all devices can read (arena_alloc and
// arena_free of kvp_config).
void * kvp_cuda_arena_alloc(void * user, size_t bytes);
void   kvp_cuda_arena_free(void * user, void * base, size_t bytes);

#ifdef __cplusplus
}
#endif
