// kvc: KV memory that is reserved as address space and holds memory only where it is used.
//
// Words
//
// A *pool* stands for one device, or for host memory, and has a size of address space, a
// limit of memory, and buffers. A *buffer* is one range of addresses, divided from its base
// on into *granules* of the pool's granule size. A granule is *committed* (it has memory of
// its own) or *uncommitted*. A pool may keep the memory of some granules that were
// uncommitted, up to its *reserve*: this memory is *prealloc*, and the next commits take it.
//
// Sizes and offsets are in bytes. Committed memory plus prealloc never grows above the
// limit. Limits are held by accounting: no signal and no fault handler takes part.
//
// Uncommitted memory
//
// Uncommitted granules may be read and written, except with KVC_BARE, and with KVC_BARE_END behind
// the last committed granule of a buffer. Reads give any bytes.
// Writes may be lost at any time. In host memory, reads of uncommitted granules take no
// memory; writes take memory outside the accounts until a range with the granule is
// uncommitted (again), or its buffer freed. On a CUDA device all uncommitted granules of a
// pool show the same memory, one granule in size. Committing gives a granule zeros.
//
// Work in flight
//
// On a CUDA device kvc_buffer_commit, kvc_buffer_uncommit and kvc_buffer_free change
// mappings, also those of granules that a commit makes committed: they are unmapped for a
// moment. These calls first wait for all kernels and copies that were queued in the device's
// primary context. The caller makes sure that other threads queue none meanwhile that touch
// the granules that change. With KVC_BARE uncommitted granules are not mapped, and a commit
// neither waits nor disturbs anything; with KVC_BARE_END that is so for commits behind the last
// committed granule of a buffer, and kvc_buffer_disturbs tells. kvc_pool_resize and kvc_pool_poll_shm never change mappings that a
// kernel can see, and are allowed at any time.
//
// Errors
//
// Functions return KVC_OK or a negative KVC_E_ code, and kvc_last_error() then has a
// sentence: the operation, its object with numbers, and the remedy. A function that failed
// has changed nothing, except as its comment says. Handles are checked: a handle that was
// freed, or never existed, is KVC_E_INVALID. No exception leaves the library.
//
// Threads and processes
//
// All functions may be called from any thread at any time. Calls for one pool and its
// buffers run one after another, except kvc_buffer_get_base, which never waits. Calls for
// different pools do not wait for each other. A child made by fork without exec cannot use
// its parent's pools and buffers (KVC_E_INVALID), and may make its own pools.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_pool   kvc_pool_t;
typedef struct kvc_buffer kvc_buffer_t;

enum {
    KVC_OK          =  0,
    KVC_E_INVALID   = -1, // an argument or a handle; a limit in a segment that cannot be meant
    KVC_E_LIMIT     = -2, // the pool's limit, or its address space, does not hold this
    KVC_E_NO_MEMORY = -3, // the device or the system has no memory or no addresses left
    KVC_E_NO_VMM    = -4, // no driver, or a device without virtual memory management
    KVC_E_BUSY      = -5, // in use: buffers of a pool, a segment's lock, a segment's name
    KVC_E_SYSTEM    = -6, // an operation of the system or of the driver failed
    KVC_E_OVER      = -7, // a new limit is in force, and more than the limit is committed
};

#define KVC_CPU (-1) // a device number: host memory

#define KVC_GRANULE_MIN         4096u             // of host memory, and one page at least
#define KVC_GRANULE_CPU_DEFAULT 65536u
#define KVC_GRANULE_CPU_MAX     (2u << 20)
#define KVC_GRANULE_CUDA_MAX    (1u << 30)
#define KVC_GRANULES_MAX        (1u << 26)        // of one buffer
#define KVC_LIMIT_MAX           (INT64_C(1) << 50) // in a segment; a larger number is refused

// Flags of kvc_options_t.
#define KVC_NO_POPULATE 1u // host memory: pages come with the first write, not with commit
#define KVC_HUGE_PAGES  2u // host memory: leave transparent huge pages to the system's setting
#define KVC_BARE        4u // CUDA: uncommitted granules are not mapped, and must not be touched
#define KVC_BARE_END    8u // CUDA: the same for those behind the last committed one of a buffer

typedef struct kvc_options {
    // Size of a granule, a power of two. Host memory: a multiple of the page size from
    // KVC_GRANULE_MIN to KVC_GRANULE_CPU_MAX; 0: KVC_GRANULE_CPU_DEFAULT, or one page where
    // pages are larger. CUDA: a multiple of the driver's granularity up to
    // KVC_GRANULE_CUDA_MAX; 0: the driver's granularity, 2 MiB on today's devices.
    size_t       granule_bytes;
    size_t       reserve_bytes; // prealloc that is kept at most; 0: none
    size_t       limit_bytes;   // first limit; 0: the size of the address space
    uint32_t     flags;
    // CUDA: the driver's library. NULL: the environment variable KVC_CUDA_LIBRARY, else
    // libcuda.so.1.
    const char * cuda_library;
} kvc_options_t;

// kvc_last_error is the sentence of the calling thread's last failed call; "" before the
// first one. The text is valid until the thread's next failed call.
const char * kvc_last_error(void);

// --- pools -----------------------------------------------------------------------------

// kvc_pool_create makes a pool with address space for va_bytes on a device: a CUDA device
// number, or KVC_CPU. Address space is taken when buffers are allocated. The limit begins
// as va_bytes. KVC_E_INVALID for sizes and device numbers; KVC_E_NO_VMM where the driver is
// missing or the device lacks virtual memory management, and allocating everything at once
// is the only way. *out is NULL after an error.
int kvc_pool_create(size_t va_bytes, int device, kvc_pool_t ** out);

// kvc_pool_create_ex is kvc_pool_create with options. NULL: none.
int kvc_pool_create_ex(size_t va_bytes, int device, const kvc_options_t * options, kvc_pool_t ** out);

// kvc_pool_destroy gives everything back and removes the segment. KVC_E_BUSY while the pool
// has buffers. After KVC_E_SYSTEM the pool still exists, with buffers no longer to be
// allocated; the call may be repeated.
int kvc_pool_destroy(kvc_pool_t * pool);

// kvc_pool_resize sets the limit; a limit above the pool's address space is the address
// space. Prealloc is given up as far as the limit asks. Nothing that is committed is taken:
// where more is committed the limit is in force, the result is KVC_E_OVER, and commits of
// further granules fail until enough was uncommitted.
int kvc_pool_resize(kvc_pool_t * pool, size_t new_limit_bytes);

typedef struct kvc_stats {
    uint64_t granule_bytes;
    uint64_t va_bytes;          // address space that buffers may have in all
    uint64_t reserved_bytes;    // address space of the buffers there are
    uint64_t limit_bytes;       // may be smaller than committed_bytes after a resize
    uint64_t committed_bytes;
    uint64_t peak_bytes;        // the largest committed_bytes so far
    uint64_t prealloc_bytes;
    uint64_t reserve_bytes;     // the option: prealloc_bytes at most
    uint64_t buffers;
    uint64_t commits;           // calls that committed granules
    uint64_t commit_granules;   // granules that they committed
    uint64_t reused_granules;   // part of commit_granules that came from prealloc
    uint64_t commit_ns;         // time in these calls, and in those that failed
    uint64_t uncommits;         // calls that uncommitted granules
    uint64_t uncommit_granules;
    uint64_t uncommit_ns;
    uint64_t refused;           // commits that the limit refused
    uint64_t failed;            // commits and uncommits that the system or the driver failed
} kvc_stats_t;

int kvc_pool_stats(kvc_pool_t * pool, kvc_stats_t * out);

// kvc_pool_memory asks the device, or the system, for its free and total memory. Other
// processes count.
int kvc_pool_memory(kvc_pool_t * pool, uint64_t * free_bytes, uint64_t * total_bytes);

// --- buffers ---------------------------------------------------------------------------

// kvc_buffer_alloc reserves addresses for size bytes, rounded up to granules, and commits
// nothing. KVC_E_LIMIT where the pool's address space is used up.
int kvc_buffer_alloc(kvc_pool_t * pool, size_t size, kvc_buffer_t ** out);

// kvc_buffer_get_base is the buffer's first address, on the pool's device; aligned to the
// page size in host memory and to the granule on a CUDA device. NULL for a wrong handle.
void * kvc_buffer_get_base(kvc_buffer_t * buf);

// kvc_buffer_commit commits the granules that the range [offset, offset+size) touches. A
// granule that is committed already keeps its contents; others read as zeros. All or
// nothing: after an error exactly the granules of before are committed. KVC_E_INVALID for a
// range outside the buffer, KVC_E_LIMIT for the limit, KVC_E_NO_MEMORY for the device.
//
// After an error of a CUDA driver that also refuses to restore the mappings, the sentence
// says so: then some uncommitted granules are not mapped, as with KVC_BARE, until they are
// committed.
int kvc_buffer_commit(kvc_buffer_t * buf, size_t offset, size_t size);

// kvc_buffer_disturbs is 1 where a commit of the range would change the mappings of granules that
// may be touched, 0 where it would not, and KVC_E_INVALID for a range outside the buffer.
int kvc_buffer_disturbs(kvc_buffer_t * buf, size_t offset, size_t size);

// kvc_buffer_uncommit uncommits the granules that lie wholly inside [offset, offset+size).
// Ends need not be aligned: a granule of which the range covers only a part stays committed,
// and a range up to the buffer's end covers the last granule. Commits are not counted: one
// uncommit undoes any number of commits. Two neighbours that share a granule therefore
// uncommit their union. After KVC_E_SYSTEM some granules may be uncommitted and others not;
// kvc_pool_stats and kvc_buffer_committed have the truth, and the call may be repeated.
int kvc_buffer_uncommit(kvc_buffer_t * buf, size_t offset, size_t size);

// kvc_buffer_committed is 1 where all granules that the range touches are committed, 0 where
// one of them is not, or a negative code. An empty range is committed.
int kvc_buffer_committed(kvc_buffer_t * buf, size_t offset, size_t size);

// kvc_buffer_free gives memory and addresses back. After KVC_E_SYSTEM the buffer still
// exists, and can only be freed again.
int kvc_buffer_free(kvc_buffer_t * buf);

// --- a segment: the limit that others set ----------------------------------------------
//
// The segment is a file in /dev/shm of 24 bytes, three int64_t of the machine: total, used,
// prealloc. Tools take a flock to read (LOCK_SH) and to write (LOCK_EX). Tools write total;
// this library writes used and prealloc, and total where a tool's total is not in force.
// Beside it is NAME.lock, which its process holds locked for life: a segment whose lock is
// free is left over from a dead process. The file has five int64_t, for programs that divide
// memory between processes: 1, the limit that is in force, the bytes by which used grows in any
// case, those that work lacks while it waits, and the part of used that a lower limit would
// free. A total that was just lowered is in force with the process's next round.

// kvc_pool_attach_shm makes the segment NAME (mode 0600) with the pool's limit as total. A
// leading slash is left out; the rest is 1 to 200 of letters, digits, '.', '_' and '-', and
// does not begin with '.' or end in ".lock". A segment that a dead process left is taken
// over, and begins anew. KVC_E_BUSY where a live process has the name, or the pool already has
// a segment. No thread is started: kvc_pool_poll_shm does the work. May wait up to 50 ms.
int kvc_pool_attach_shm(kvc_pool_t * pool, const char * name);

// kvc_pool_poll_shm does one round: reads total, applies it as kvc_pool_resize does,
// publishes used and prealloc. Never waits for a lock of the segment: KVC_E_BUSY where
// another process holds it, or another thread is polling. KVC_E_INVALID where total is zero,
// negative, smaller than a granule or above KVC_LIMIT_MAX: the last good limit stays, and is
// written back. A total above the pool's address space is the address space. A segment that
// was unlinked, or has another size, is made again with the last good limit. More committed
// than the limit is no error here: kvc_pool_stats has both numbers. KVC_E_SYSTEM where a tool of
// another user made the segment again, such as root's kvctl after a delete: the last limit
// stays until that user removes the file.
int kvc_pool_poll_shm(kvc_pool_t * pool);

// kvc_pool_tell_shm sets what the next round writes to NAME.lock: the bytes that work which
// runs will commit although the limit is lowered, those that work lacks while it waits, and the
// committed ones that a lower limit would free; each is KVC_LIMIT_MAX at most. KVC_E_INVALID
// without a segment.
int kvc_pool_tell_shm(kvc_pool_t * pool, uint64_t promised_bytes, uint64_t lacking_bytes, uint64_t spare_bytes);

// kvc_shm_reap removes the segments whose names begin with prefix (3 characters at least),
// which belong to this user and whose process is dead, with their lock files. Segments
// without a lock file are left alone. *removed, which may be NULL, is their number.
int kvc_shm_reap(const char * prefix, int * removed);

#ifdef __cplusplus
}
#endif
