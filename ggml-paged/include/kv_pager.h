// kv_pager: K/V of any length in a fixed amount of memory.
//
// Layout
//
// A *group* is a set of cells 0 .. n_cells-1; the caller keeps their meaning (position,
// sequences). One Causal cache of Ollama is one group. A *layer* belongs to a group and
// has rows of K and V for each of its cells. A *page* is page_cells consecutive cells of
// one layer: page p holds cells [p*page_cells, (p+1)*page_cells). The bytes of a page are
//
//   K  [page_cells][kv_heads][row of dk elements of type_k]
//   V  [page_cells][kv_heads][row of dv elements of type_v]     from v_offset on
//
// where v_offset is the size of K rounded up to 4096. A page is in at most one *frame* (a
// fixed part of one arena of ram_bytes), in the spill file, in files that belong to others
// (extents), or nowhere: a page without written rows reads as zeros.
//
// Order of use
//
// create, add layers, start; then any mix of the rest from any thread; free when no scan
// and no pin is left. All functions are safe for concurrent use unless they say otherwise.
// The arena is only address space until its frames are used; freed frames go back to the
// system.
//
// Errors
//
// Functions that can fail return 0 or a negative errno, and kvp_last_error() has a
// sentence for the error (per thread). An I/O error on a page is *sticky*: the pager keeps
// the error (kvp_pager_error), every later scan returns it, and results computed since
// must not be used. Pages that are read back are checked (CRC-32C): a page that differs
// from the written one is such an error too, -EIO.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kv_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvp_pager kvp_pager;

#define KVP_MAX_SEQUENCES 64u   // bits of a cell's sequence set
#define KVP_PAGE_CELLS_MIN 16u
#define KVP_PAGE_CELLS_MAX 65536u
#define KVP_ALIGN 4096u         // of frames, of V in a page, of the spill file

typedef struct kvp_config {
    uint32_t     page_cells;   // cells of a page: a power of two in [16, 65536]
    uint64_t     ram_bytes;    // the arena; frames = ram_bytes / the largest page
    const char * spill_dir;    // a directory on a disk; NULL: pages never leave memory
    uint64_t     spill_bytes;  // cap of the spill file; 0: no cap
    uint32_t     io_threads;   // 1..16; 0: 3
    int          direct;       // 1: O_DIRECT where the file system can, 0: through the page cache
    // Memory for the arena, page-locked under CUDA. NULL: anonymous mmap.
    void * (*arena_alloc)(void * user, size_t bytes);
    void   (*arena_free)(void * user, void * base, size_t bytes);
    void *       arena_user;
    // Tests: called before each read (write=0) or write (write=1) of spilled pages and
    // extents; a negative errno that it returns fails the operation.
    int  (*io_fault)(void * user, int write, uint64_t offset, size_t bytes);
    void *       io_fault_user;
} kvp_config;

typedef struct kvp_layer_desc {
    uint32_t group;      // 0 .. 15
    uint32_t n_cells;    // capacity, the same for all layers of a group
    uint32_t kv_heads;
    uint32_t dk, dv;     // elements of a row of K, of V
    int      type_k, type_v;
} kvp_layer_desc;

// kvp_last_error is the sentence of this thread's last failed call: the operation, its
// object, and the remedy.
const char * kvp_last_error(void);

// kvp_pager_create checks the settings, opens the spill file (O_TMPFILE, 0600: a file
// without a name, which disappears with the process) and reserves nothing yet. -EINVAL for
// settings, -EROFS and the like from the spill directory, -EOPNOTSUPP for a directory on a
// file system in memory (tmpfs, ramfs) or without unnamed files.
int  kvp_pager_create(const kvp_config * config, kvp_pager ** out);

// kvp_pager_free joins the I/O threads and frees all memory and files. NULL is allowed.
void kvp_pager_free(kvp_pager * pager);

// kvp_layer_add adds a layer before start and writes its number (0, 1, ...) to *layer.
int  kvp_layer_add(kvp_pager * pager, const kvp_layer_desc * desc, uint32_t * layer);

// kvp_pager_start fixes the layout: frames of the size of the largest page, and starts the
// I/O threads. -ENOMEM where ram_bytes does not hold one frame.
int  kvp_pager_start(kvp_pager * pager);

// Sizes, valid from kvp_layer_add (frames: from start) on.
uint32_t kvp_page_cells(const kvp_pager * pager);
uint32_t kvp_pager_layers(const kvp_pager * pager);
const kvp_layer_desc * kvp_layer_get(const kvp_pager * pager, uint32_t layer);
size_t   kvp_layer_row_k(const kvp_pager * pager, uint32_t layer);    // bytes of a cell: kv_heads rows
size_t   kvp_layer_row_v(const kvp_pager * pager, uint32_t layer);
size_t   kvp_layer_v_offset(const kvp_pager * pager, uint32_t layer);
size_t   kvp_layer_page_bytes(const kvp_pager * pager, uint32_t layer); // rounded up to KVP_ALIGN
uint32_t kvp_pager_frames(const kvp_pager * pager);

// kvp_pager_error is 0 or the first I/O error on a page, with its sentence in *message
// (may be NULL; owned by the pager).
int  kvp_pager_error(const kvp_pager * pager, const char ** message);

// --- room ----------------------------------------------------------------------------

// kvp_reserve makes sure that pages 0 .. pages-1 of all layers of a group can be written:
// pages that will not fit in frames get room in the spill file now (fallocate), so that a
// full disk shows here and not in the middle of a batch. Room once made is kept. -ENOSPC,
// with the sizes in the sentence; earlier reservations stay.
int  kvp_reserve(kvp_pager * pager, uint32_t group, uint32_t pages);

// --- pages ---------------------------------------------------------------------------

typedef struct kvp_page {
    uint8_t * k;      // [page_cells] rows of kvp_layer_row_k bytes
    uint8_t * v;      // [page_cells] rows of kvp_layer_row_v bytes
    uint64_t  generation; // changes when the page is dropped
} kvp_page;

// kvp_pin brings a page into a frame, waits for the page, and keeps the page there until
// the matching kvp_unpin. dirty: any row of the page may have been written to. A caller
// that holds a pin and asks for another page can deadlock with a budget of one frame: hold
// one pin at a time.
int  kvp_pin(kvp_pager * pager, uint32_t layer, uint32_t page, kvp_page * out);
void kvp_unpin(kvp_pager * pager, uint32_t layer, uint32_t page, int dirty);

// kvp_unpin_rows is kvp_unpin of a page of which only rows [first, first+n) were written
// to: where the spill file has the other rows already, only these rows are written to it.
void kvp_unpin_rows(kvp_pager * pager, uint32_t layer, uint32_t page, uint32_t first, uint32_t n);

// kvp_prefetch asks for pages ahead of use, as far as frames without more useful pages
// allow. kvp_prefetch never waits and never fails.
void kvp_prefetch(kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n);

// kvp_page_version is for callers that keep copies of pages elsewhere: a copy that was
// begun after a version was asked for is good as long as the page has that version. The
// version grows by one with every change that a reader of the page would see: an unpin
// that says that rows were written to, a rotation, a drop, a backing by files;
// kvp_rows_write is as many unpins as its list has runs of cells of one page. Pages move
// between memory and disk without a new version. Versions of different pagers of a process
// differ. 0: there is no such page.
uint64_t kvp_page_version(const kvp_pager * pager, uint32_t layer, uint32_t page);

// kvp_drop drops the contents of a page in all layers of a group, whose cells are free. A
// pinned page is dropped at its last unpin.
void kvp_drop(kvp_pager * pager, uint32_t group, uint32_t page);

// kvp_rows_read and kvp_rows_write copy the rows of cells, one contiguous row of
// kvp_layer_row_k (row_v) bytes per cell in the order given. k or v may be NULL.
int  kvp_rows_read (kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, void * k, void * v);
int  kvp_rows_write(kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, const void * k, const void * v);

// An extent says that rows [first, first+n) of a page are also in a file, K at k_offset
// and V at v_offset, contiguous. The pager keeps its own descriptor of the file.
typedef struct kvp_extent {
    int      fd;
    uint32_t first, n;
    uint64_t k_offset, v_offset;
} kvp_extent;

// kvp_back names files that already have the present contents of a page. As long as the
// page does not change, evicting the page writes nothing, and the page is read back from
// these files. The extents must cover rows 0 .. covered-1 without gaps. A page that is
// written to again falls back to the spill file. -EBUSY, without an effect, if rows after
// those were written to since the page was last dropped: such rows may be in use.
//
// The rows are checked whenever they are read from the files: against the page's rows, for
// which the page is brought into a frame. A page without contents (never written to, or
// dropped) is checked against the present bytes of the files, which are read once here.
int  kvp_back(kvp_pager * pager, uint32_t layer, uint32_t page, const kvp_extent * extents, uint32_t n);

// --- rotation (context shift) --------------------------------------------------------

// One plane of a rotation of K: elements a and b of each head's row become
// m[0]*x[a] + m[1]*x[b] and m[2]*x[a] + m[3]*x[b].
typedef struct kvp_plane {
    uint16_t a, b;
    float    m[4];
} kvp_plane;

// kvp_rotate applies a rotation to the K rows of some cells of a page, when the page is
// next in a frame and not before: a shift does not read spilled pages back. cells is a bit
// per cell, (page_cells+63)/64 words. Rotations of a cell add up in order, and are rounded
// to the K type each time the page is brought up to date.
int  kvp_rotate(kvp_pager * pager, uint32_t layer, uint32_t page, const uint64_t * cells,
                const kvp_plane * planes, uint32_t n_planes);

// --- scans ---------------------------------------------------------------------------

// A scan visits a list of pages of one layer. The pager's I/O threads read ahead, first in
// the list and then in the layer that followed last time. A scan makes progress with a
// single frame.
//
//   unordered: kvp_scan_claim hands out (page, part) pairs of any page that is ready,
//              resident ones first while others are read; each part is given back with
//              kvp_scan_release. For decode.
//   ordered:   every one of `consumers` threads calls kvp_scan_wait and kvp_scan_release
//              for index 0, 1, ... in turn; the last to release a page unpins it. For
//              prefill.
typedef struct kvp_scan kvp_scan;

// kvp_scan_begin never waits. pages must stay valid until kvp_scan_end. consumers >= 1 for
// ordered scans, 0 for unordered ones, which use parts >= 1.
int  kvp_scan_begin(kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n,
                    uint32_t consumers, uint32_t parts, kvp_scan ** out);

// kvp_scan_claim returns 1 with an index into pages, a part and the page; 0 when all parts
// were handed out; a negative errno when the scan cannot go on. kvp_scan_claim waits while
// no page is ready.
int  kvp_scan_claim(kvp_scan * scan, uint32_t * index, uint32_t * part, kvp_page * page);

// kvp_scan_wait waits for pages[index]: 0 or a negative errno.
int  kvp_scan_wait(kvp_scan * scan, uint32_t index, kvp_page * page);

void kvp_scan_release(kvp_scan * scan, uint32_t index);

// kvp_scan_end is called once, after the last thread is done with the scan.
void kvp_scan_end(kvp_scan * scan);

// --- statistics ----------------------------------------------------------------------

typedef struct kvp_stats {
    uint64_t frames, frames_used;      // all frames; frames that hold a page
    uint64_t arena_bytes;              // frames * frame size
    uint64_t spill_bytes;              // room made in the spill file
    uint64_t hits, misses;             // pins and scan visits that found the page in a frame, or not
    uint64_t reads, read_bytes;        // from spill and extents
    uint64_t writes, write_bytes;      // to the spill
    uint64_t extent_bytes;             // part of read_bytes that came from extents
    uint64_t zero_pages;               // pages made without reading
    uint64_t evictions, drops;
    uint64_t prefetches, prefetch_hits;
    uint64_t rotations;                // pages brought up to date
    uint64_t wait_ns;                  // time that callers waited for pages
    uint64_t io_ns;                    // time I/O threads spent in reads and writes
} kvp_stats;

void kvp_pager_stats(const kvp_pager * pager, kvp_stats * out);

// kvp_resident reports whether a page is in a frame now. The answer is for planning only:
// it may change.
int  kvp_resident(const kvp_pager * pager, uint32_t layer, uint32_t page);

// kvp_held writes bytes[page] for pages 0 .. pages-1 of a group: the bytes of K and V of one cell in
// those layers of the group whose page is in a frame now.
void kvp_held(const kvp_pager * pager, uint32_t group, uint64_t * bytes, uint32_t pages);

#ifdef __cplusplus
}
#endif
