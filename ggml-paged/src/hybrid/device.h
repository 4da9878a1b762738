// The device of the hybrid executor: staging slots, two streams, events, and
// launches of attention kernels. Implemented for CUDA, for the emulator and for tests.
//
// Layout
//
//   slots    `slots` staging areas of slot_bytes in device memory. A slot holds one page as
//            the pager lays it out: K from 0 on, V from v_offset on (kv_pager.h).
//   streams  KVP_STREAM_COPY carries the copies, KVP_STREAM_COMPUTE all launches. Work in
//            one stream happens in the order given; the two are ordered by events alone.
//   events   numbered 0 .. events-1. An event that is recorded again stands for the later
//            record; the executor does that only when no thread waits for the earlier record.
//   state    the device keeps one running (m, l, acc[dv]) per row, a row being
//            (query, head), number query * heads + head. It is empty after begin
//            (m = -inf, l = 0, acc = 0). attend_hot, attend_slot and merge_host fold into
//            it in the order of the calls; the device chooses the splits of a page, as
//            long as the result is the same for the same calls.
//
// Ownership
//
// The device knows the op (queries, metadata, parameters, out) from its ctx; the executor
// does not look at them. Host memory given to h2d stays valid and unchanged until an event
// recorded after it has been waited for, or drain has returned; that of merge_host until
// the end event has been waited for, or drain has returned. Nothing else may touch a slot
// between begin and end.
//
// Threads
//
// event_sync, drain, elapsed and last_error may be called from any thread at any time
// between begin and end, also while another thread enqueues. The rest is called from the
// thread that runs the executor, one call at a time.
//
// Errors
//
// Functions return 0 or a negative errno; last_error then has a sentence for it, asked for
// on the same thread directly after. After an error nothing more is enqueued: drain, end.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "paged_attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvp_stream {
    KVP_STREAM_COPY    = 0,
    KVP_STREAM_COMPUTE = 1,
} kvp_stream;

// Events of a run with n slots, by their meaning for slot s.
#define KVP_EVENT_COPY_BEGIN(s)   (4u * (s) + 0u)  // the copy starts
#define KVP_EVENT_COPIED(s)       (4u * (s) + 1u)  // the host page is no longer read
#define KVP_EVENT_ATTEND_BEGIN(s) (4u * (s) + 2u)  // the kernels that read it start
#define KVP_EVENT_READ(s)         (4u * (s) + 3u)  // the slot may be overwritten
#define KVP_EVENT_END(n)          (4u * (n))       // out is complete
#define KVP_EVENTS(n)             (4u * (n) + 1u)

// A page as a launch needs it.
typedef struct kvp_page_ref {
    uint32_t  page;   // absolute number in the layer
    uint32_t  cells;  // leading cells that are present; the rest must not be read
    kvp_class cls;    // for all queries of the op; KVP_FULL needs no predicates
} kvp_page_ref;

// (m, l, acc) of all rows in one block of host memory: with m the largest score seen, l =
// sum exp(s - m) and acc[d] = sum exp(s - m) * v[d]. A row that saw no cell has m = -inf
// and l = 0, acc = 0. Block: m[rows], l[rows], acc[rows][dv], all f32.
typedef struct kvp_partial {
    uint32_t rows, dv;
    float *  m;    // [rows]; the block begins here
    float *  l;    // [rows] == m + rows
    float *  acc;  // [rows][dv] == m + 2 * rows
} kvp_partial;

typedef struct kvp_device {
    void * ctx;

    // begin makes slots (may be 0), events and an empty state. Copies enqueued after it
    // must not touch memory that earlier work on the compute stream still uses: with slots
    // from a stream-ordered pool the copy stream has to wait for the compute stream here.
    // If begin fails it has undone its work, and end is not called.
    int (*begin)(void * ctx, uint32_t slots, size_t slot_bytes, uint32_t events);

    // end gives back the resources of begin. Called once per successful begin; with pages from the
    // host everything enqueued is complete by then, without them work on the compute stream
    // may still be under way (pool memory is ordered by the stream).
    void (*end)(void * ctx);

    // h2d enqueues a copy of host memory to offset of a slot.
    int (*h2d)(void * ctx, kvp_stream stream, uint32_t slot, size_t offset, const void * src, size_t bytes);

    int (*event_record)(void * ctx, kvp_stream stream, uint32_t event);
    // event_wait makes a stream wait for the last record of an event; the host goes on.
    int (*event_wait)(void * ctx, kvp_stream stream, uint32_t event);
    // event_sync makes the calling thread wait for the last record of an event.
    int (*event_sync)(void * ctx, uint32_t event);
    // elapsed is the time between two completed events. NULL: the device cannot tell, and
    // its rates are not measured.
    int (*elapsed)(void * ctx, uint32_t from, uint32_t to, uint64_t * ns);

    // All on the compute stream:
    int (*attend_hot)(void * ctx, const kvp_page_ref * pages, uint32_t n);  // device memory
    int (*attend_slot)(void * ctx, uint32_t slot, const kvp_page_ref * page);
    int (*merge_host)(void * ctx, const kvp_partial * partial);  // copies the block, folds it
    int (*finish)(void * ctx);                                   // sinks; state -> out

    // drain waits for everything enqueued on both streams. After it has returned, with an
    // error or not, the device does not read host memory.
    int (*drain)(void * ctx);

    const char * (*last_error)(void * ctx);
} kvp_device;

#ifdef __cplusplus
}
#endif
