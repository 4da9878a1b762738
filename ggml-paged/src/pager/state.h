// The state of a pager. One mutex guards the whole state. Reads, writes, clearing and
// rotating happen without the mutex, on pages whose state keeps other threads away.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kv_pager.h"
#include "pager/backing.h"
#include "pager/spill.h"

namespace kvp {

constexpr uint32_t NONE       = UINT32_MAX;
constexpr uint32_t MAX_GROUPS = 16;

struct page_id {
    uint32_t layer = NONE, page = NONE;
};

enum class page_state : uint8_t {
    absent,    // not in a frame
    queued,    // wanted, and in the queue for a frame
    loading,   // an I/O thread fills or rotates its frame
    resident,  // in a frame
    evicting,  // an I/O thread writes the page; its frame is promised to another page
};

struct rotation {
    std::vector<uint64_t> cells;  // a bit per cell
    std::shared_ptr<const std::vector<kvp_plane>> planes;
};

struct row_range {
    uint32_t first = 0, end = 0;
    bool empty() const { return first >= end; }
};

// Data that few pages have.
struct page_extra {
    std::vector<extent_ref> extents;
    std::vector<rotation>   rotations;
};

// The contents of a page are in its frame if the page is dirty, else in its extents if it
// has any, else in its slot if in_slot is set; otherwise they are zeros. Pending rotations
// are applied on top. For a dirty page the slot has the rows that are not dirty.
struct page_entry {
    uint32_t   frame      = NONE;
    uint32_t   slot       = NONE;  // of the spill file
    row_range  dirty_rows;
    uint32_t   written    = 0;     // only rows before this one may have contents
    uint32_t   pins       = 0;     // users of the frame
    uint32_t   waiting    = 0;     // waiting threads, which also keep the page from being evicted
    uint32_t   generation = 0;
    uint64_t   changes    = 0;     // of a reader's view, see kvp_page_version
    uint32_t   last_round = 0;     // see kvp_pager::round
    uint32_t   seen       = 0;     // the layer's scan that visited the page last
    page_state state      = page_state::absent;
    bool dirty      = false;
    bool in_slot    = false;
    bool writing    = false;  // written back while resident
    bool dropping   = false;  // dropped as soon as it has no user
    bool ahead      = false;  // belongs to the list of pages about to be used
    bool prefetched = false;  // read ahead, and not used yet
    bool to_write   = false;  // in the write-back queue
    std::unique_ptr<page_extra> extra;
    std::unique_ptr<uint32_t[]> sums;  // checksums of the slot's bytes, see sums.h
};

enum class frame_list : uint8_t { none, used, ahead, tail };

struct frame {
    page_id    owner;
    uint32_t   prev = NONE, next = NONE;
    frame_list list = frame_list::none;
    bool       zero = false;  // free, and known to hold zeros
};

// Frames in the order of use, least recent first.
struct frame_chain {
    uint32_t first = NONE, last = NONE, count = 0;
};

struct layer_state {
    kvp_layer_desc desc{};
    size_t row_k = 0, row_v = 0, v_offset = 0, page_bytes = 0;
    std::vector<page_entry> pages;
    uint32_t tail      = NONE;   // the page written last: the next batch writes to it again
    bool     tail_kept = false;  // counted in kvp_pager::tails_kept
    uint32_t scan_no    = 0;
    uint32_t scan_round = 0;
    uint32_t next       = NONE;  // the layer scanned after this one last time
    std::vector<uint32_t>   last_list;
    uint32_t active_scans = 0;
};

struct job {
    page_id id;
    page_id victim;          // written from the frame first; layer NONE: none
    bool    rotate = false;  // the page is in the frame and only needs rotations
    bool    ahead  = false;  // counted in kvp_pager::ahead_in_flight
};

using lock_t = std::unique_lock<std::mutex>;

}  // namespace kvp

struct kvp_pager {
    // Settings, constant from start on.
    uint32_t   page_cells = 0;
    uint64_t   ram_bytes  = 0;
    uint32_t   io_threads = 0;
    bool       direct     = false;
    kvp_config config{};
    std::vector<std::unique_ptr<kvp::layer_state>> layers;
    bool started = false;
    uint64_t first_version = 0;  // of all pages

    uint8_t * arena       = nullptr;
    size_t    frame_bytes = 0;
    kvp::spill_file spill;

    mutable std::mutex mutex;

    // Frames.
    std::vector<kvp::frame>  frames;
    std::vector<uint32_t>    free_frames;
    std::vector<uint32_t>    returned;  // free soon: to be returned to the system
    std::array<kvp::frame_chain, 4> chains;
    uint32_t tails_kept = 0;
    std::deque<kvp::page_id> queue;     // pages that need a frame, in the order asked

    // A round is about one forward pass, and ends when a layer is scanned again. Pages
    // that missed several rounds are no part of the present computation.
    uint32_t round = 1;
    uint64_t uses  = 0;  // pins since the round began

    // Work of the I/O threads.
    std::deque<kvp::job>     demand_jobs, ahead_jobs;
    std::deque<kvp::page_id> write_back;
    uint32_t ahead_in_flight = 0;
    std::condition_variable  io_cv;
    std::vector<std::thread> threads;
    bool stopping = false;

    // Spill slots.
    std::vector<uint32_t> free_slots;
    uint32_t slots   = 0;
    bool     no_room = false;  // the spill file was full: pages without a slot cannot leave
    std::array<uint32_t, kvp::MAX_GROUPS> reserved{};

    std::mutex      files_mutex;
    kvp::file_table files;
    std::shared_ptr<const std::vector<kvp_plane>> last_planes;
    uint32_t last_scanned = kvp::NONE;
    std::vector<kvp_scan *> scans;  // going on, of all layers
    bool streaming = false;  // some page was evicted or is in a file

    std::array<std::condition_variable, 32> page_cv;  // by page, for pins

    std::atomic<int> error{0};
    std::string      error_message;
    kvp_stats        stats{};

    std::mutex            attachment_mutex;
    std::shared_ptr<void> attachment;

    kvp::page_entry & at(kvp::page_id id) { return layers[id.layer]->pages[id.page]; }
    uint8_t * frame_data(uint32_t f) { return arena + size_t(f) * frame_bytes; }
    std::condition_variable & cv_of(kvp::page_id id) {
        return page_cv[(id.page * 7u + id.layer) % page_cv.size()];
    }
};

namespace kvp {

// guard holds the mutex, and returns freed frames to the system before it releases the
// mutex.
struct guard {
    kvp_pager & p;
    lock_t      lock;
    explicit guard(kvp_pager & pager) : p(pager), lock(pager.mutex) {}
    ~guard();
    guard(const guard &) = delete;
    guard & operator=(const guard &) = delete;
};

// --- table.cpp: the life of a page -----------------------------------------------------

// advance follows up a change of a page: forgets it, queues it, brings it up to date, or
// makes its frame available.
void advance(kvp_pager & p, page_id id);
// usable returns whether waiting threads can read a page.
bool usable(const page_entry & e);
bool in_transit(const page_entry & e);  // in the hands of an I/O thread
bool has_content(const page_entry & e);
bool has_rotations(const page_entry & e);
void mark_dirty(page_entry & e, row_range rows);
void mark_all_dirty(kvp_pager & p, page_entry & e);
// note_use is called for each pin and each visit of a scan.
void note_use(kvp_pager & p, page_entry & e);
// try_ahead starts to read a page if a frame is available without loss.
bool try_ahead(kvp_pager & p, page_id id);
bool ahead_room(kvp_pager & p);
void next_round(kvp_pager & p);
// load_done makes a page with a filled frame usable, and wakes its waiters.
void load_done(kvp_pager & p, page_id id);
void wake_page(kvp_pager & p, page_id id);

// --- frames.cpp: which page leaves ------------------------------------------------------

void chain_remove(kvp_pager & p, uint32_t f);
void settle(kvp_pager & p, page_id id);  // puts the frame of an idle page into its list
// grant hands available frames to the queue.
void grant(kvp_pager & p);
struct frame_choice {
    uint32_t frame = NONE;
    page_id  victim;  // must be written from the frame first
};
bool choose_frame(kvp_pager & p, bool demand, frame_choice & out);
void leave_frame(kvp_pager & p, page_id id);  // the page is no longer in its frame
void chain_push_used(kvp_pager & p, uint32_t f, bool as_oldest);
void move_tail(kvp_pager & p, page_id id);
void forget_tail(kvp_pager & p, page_id id);

// --- arena.cpp --------------------------------------------------------------------------

// map_arena sets the sentence of kvp_last_error on failure.
int  map_arena(kvp_pager & p, size_t bytes);
void unmap_arena(kvp_pager & p);

// --- worker.cpp -------------------------------------------------------------------------

void start_load(kvp_pager & p, page_id id, const frame_choice & choice, bool demand);
void start_rotation(kvp_pager & p, page_id id, bool demand);
void promote(kvp_pager & p, page_id id);  // a thread now waits for a page read ahead
void worker_main(kvp_pager * p);

// --- room.cpp ---------------------------------------------------------------------------

// slot_for finds a spill slot for a page that is about to be written; false when there is
// no room. slot_for may release and take the lock.
bool slot_for(kvp_pager & p, page_id id, lock_t & lock);
void free_slot(kvp_pager & p, page_entry & e);

// --- rotate.cpp -------------------------------------------------------------------------

void apply_rotations(const layer_state & l, uint32_t page_cells, uint8_t * k, const std::vector<rotation> & list);

// --- scan.cpp ---------------------------------------------------------------------------

void scans_ready(kvp_pager & p, page_id id);
void pump_scans(kvp_pager & p);  // starts reads for running scans
void wake_scans(kvp_pager & p);

// --- pin.cpp ----------------------------------------------------------------------------

int check_page(kvp_pager * p, uint32_t layer, uint32_t page, const char * what);
// hold waits for a page and pins it; let_go unpins it.
int  hold(kvp_pager & p, page_id id, lock_t & lock);
void let_go(kvp_pager & p, page_id id, row_range written = row_range());
int sticky(kvp_pager & p);  // the sticky error, as this thread's last error

// fail_locked is kvp_fail for callers that hold the mutex.
void fail_locked(kvp_pager & p, int err, const char * message);

uint64_t now_ns();

}  // namespace kvp
