// The life of a page: absent, queued for a frame, loading, resident, evicting.
#include "pager/state.h"

#include <algorithm>
#include <chrono>

#include <sys/mman.h>

namespace kvp {

namespace {

// Small pages are read ahead as far as a few large ones are: a disk answers many reads at once.
constexpr size_t AHEAD_BYTES = 8u << 20;

void forget(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    if (e.state == page_state::resident) {
        const uint32_t f = e.frame;
        chain_remove(p, f);
        leave_frame(p, id);
        p.frames[f].owner = page_id();
        p.returned.push_back(f);
    }
    layer_state & l = *p.layers[id.layer];
    if (l.tail == id.page) {
        forget_tail(p, id);
        l.tail = NONE;
    }
    free_slot(p, e);
    e.extra.reset();
    e.written  = 0;
    e.dirty    = false;
    e.dropping = false;
    p.cv_of(id).notify_all();
}

void advance_resident(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    if (e.writing) {
        return;  // called again at the end of the write
    }
    if (e.pins > 0 || e.waiting > 0) {
        chain_remove(p, e.frame);
        if (e.pins == 0 && has_rotations(e)) {
            start_rotation(p, id, true);
        }
        return;
    }
    settle(p, id);
    grant(p);
}

}  // namespace

uint64_t now_ns() {
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count());
}

guard::~guard() {
    while (!p.returned.empty()) {
        std::vector<uint32_t> back;
        back.swap(p.returned);
        const bool to_system = p.queue.empty() && p.config.arena_alloc == nullptr;
        bool zero = to_system;
        if (to_system) {
            lock.unlock();
            for (uint32_t f : back) {
                zero = madvise(p.frame_data(f), p.frame_bytes, MADV_DONTNEED) == 0 && zero;
            }
            lock.lock();
        }
        for (uint32_t f : back) {
            p.frames[f].zero = zero;
            p.free_frames.push_back(f);
        }
        grant(p);
        pump_scans(p);
    }
}

bool in_transit(const page_entry & e) {
    return e.state == page_state::loading || e.state == page_state::evicting || e.writing;
}

bool has_rotations(const page_entry & e) {
    return e.extra && !e.extra->rotations.empty();
}

bool has_content(const page_entry & e) {
    return e.in_slot || (e.extra && !e.extra->extents.empty());
}

bool usable(const page_entry & e) {
    return e.state == page_state::resident && !e.dropping && !has_rotations(e);
}

void mark_dirty(page_entry & e, row_range rows) {
    if (e.dirty) {
        rows.first = std::min(rows.first, e.dirty_rows.first);
        rows.end   = std::max(rows.end, e.dirty_rows.end);
    }
    e.dirty      = true;
    e.dirty_rows = rows;
    if (e.extra) {
        e.extra->extents.clear();
    }
}

void mark_all_dirty(kvp_pager & p, page_entry & e) {
    mark_dirty(e, {0, p.page_cells});
}

void next_round(kvp_pager & p) {
    p.round++;
    p.uses = 0;
}

void note_use(kvp_pager & p, page_entry & e) {
    e.last_round = p.round;
    e.ahead      = false;
    if (e.prefetched) {
        e.prefetched = false;
        p.stats.prefetch_hits++;
    }
}

void advance(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    if (e.dropping && e.pins == 0 && !in_transit(e)) {
        forget(p, id);
    }
    if (e.state == page_state::resident) {
        advance_resident(p, id);
    } else if (e.state == page_state::absent && e.waiting > 0) {
        e.state = page_state::queued;
        p.queue.push_back(id);
        grant(p);
    } else if (e.state == page_state::loading && e.waiting > 0) {
        promote(p, id);
    }
}

void wake_page(kvp_pager & p, page_id id) {
    p.cv_of(id).notify_all();
    scans_ready(p, id);
}

void load_done(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    e.state      = page_state::resident;
    e.last_round = p.round;
    advance(p, id);
    wake_page(p, id);
}

// Pages are read ahead as far as the I/O threads can be kept busy by them, in a small part
// of the frames. A page that was read and never used makes room again after a while.
bool ahead_room(kvp_pager & p) {
    frame_chain & c = p.chains[size_t(frame_list::ahead)];
    while (c.first != NONE) {
        const uint32_t f = c.first;
        page_entry & e   = p.at(p.frames[f].owner);
        if (p.round - e.last_round < 2) {
            break;
        }
        e.ahead = false;
        chain_remove(p, f);
        chain_push_used(p, f, true);
    }
    // One page for each thread to read and one in use are worth more than as many hits;
    // beyond those pages the part is smaller.
    const size_t frames = p.frames.size(), threads = p.io_threads;
    const size_t wanted = std::max(2 * threads + 2, AHEAD_BYTES / p.frame_bytes);
    const size_t most   = std::max(std::min(wanted, frames / 8), std::min(threads + 1, frames / 4));
    return p.ahead_in_flight + c.count < std::max<size_t>(most, 1);
}

bool try_ahead(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    if (p.error.load() != 0 || !p.queue.empty() || !ahead_room(p)) {
        return false;
    }
    if (e.state == page_state::resident && has_rotations(e) && e.pins == 0 && e.waiting == 0 && !e.writing && !e.dropping) {
        chain_remove(p, e.frame);
        start_rotation(p, id, false);
        return true;
    }
    frame_choice choice;
    if (e.state != page_state::absent || !choose_frame(p, false, choice)) {
        return false;
    }
    e.prefetched = true;
    p.stats.prefetches++;
    start_load(p, id, choice, false);
    return true;
}

}  // namespace kvp
