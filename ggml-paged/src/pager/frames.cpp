// The choice of the page that leaves a frame when another page needs one.
//
// A forward pass visits the pages of all layers in the same order each time. Under such a
// cycle the page used least recently is needed next, and evicting that page gives no hits
// at all. The page used most recently is needed last: evicting that page keeps the others
// in place, and a budget of a quarter of the pages serves a quarter of the visits. So
// pages leave from the recent end of the chain, except that
//   - pages that missed several rounds are no part of the cycle any more, and leave first,
//   - pages that a scan has yet to visit, and those read ahead, stay while others can go,
//   - the page that a layer's rows go to stays longest: every batch writes to it.
#include "pager/state.h"

#include <cerrno>
#include <cstdio>

namespace kvp {

namespace {

constexpr uint32_t STALE_ROUNDS = 4;
constexpr uint32_t VICTIMS_MAX  = 16;  // frames tried for a page that leaves without a write
constexpr size_t   WRITE_BACKS  = 64;  // pages waiting to be written ahead of need

frame_chain & chain(kvp_pager & p, frame_list list) {
    return p.chains[size_t(list)];
}

void chain_push(kvp_pager & p, uint32_t f, frame_list list, bool first) {
    frame & fr      = p.frames[f];
    frame_chain & c = chain(p, list);
    fr.list = list;
    fr.prev = first ? NONE : c.last;
    fr.next = first ? c.first : NONE;
    (fr.prev == NONE ? c.first : p.frames[fr.prev].next) = f;
    (fr.next == NONE ? c.last : p.frames[fr.next].prev) = f;
    c.count++;
}

bool may_leave(kvp_pager & p, const page_entry & e, bool demand) {
    return !e.dirty || (demand && p.spill.is_open() && (e.slot != NONE || !p.no_room));
}

// A scan of the page's layer is running and has not reached the page.
bool wanted(kvp_pager & p, page_id id) {
    const layer_state & l = *p.layers[id.layer];
    return l.active_scans > 0 && p.at(id).seen != l.scan_no;
}

void suggest_write(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    if (e.to_write || !p.spill.is_open() || p.no_room || p.write_back.size() >= WRITE_BACKS) {
        return;
    }
    e.to_write = true;
    p.write_back.push_back(id);
    p.io_cv.notify_one();
}

uint32_t find_stale(kvp_pager & p, bool demand) {
    for (frame_list list : {frame_list::used, frame_list::tail}) {
        const uint32_t f = chain(p, list).first;
        if (f == NONE) {
            continue;
        }
        const page_id id = p.frames[f].owner;
        if (p.round - p.at(id).last_round <= STALE_ROUNDS) {
            continue;
        }
        if (may_leave(p, p.at(id), demand)) {
            return f;
        }
        if (list == frame_list::used) {
            suggest_write(p, id);
        }
    }
    return NONE;
}

uint32_t find_recent(kvp_pager & p, bool demand) {
    uint32_t dirty = NONE, looked = 0;
    for (uint32_t f = chain(p, frame_list::used).last; f != NONE && looked < VICTIMS_MAX; f = p.frames[f].prev, looked++) {
        const page_id id = p.frames[f].owner;
        if (wanted(p, id)) {
            continue;
        }
        if (!p.at(id).dirty) {
            return f;
        }
        suggest_write(p, id);
        if (dirty == NONE && may_leave(p, p.at(id), demand)) {
            dirty = f;
        }
    }
    return dirty;
}

uint32_t find_any(kvp_pager & p) {
    for (frame_list list : {frame_list::used, frame_list::ahead, frame_list::tail}) {
        for (uint32_t f = chain(p, list).last; f != NONE; f = p.frames[f].prev) {
            if (may_leave(p, p.at(p.frames[f].owner), true)) {
                return f;
            }
        }
    }
    return NONE;
}

// No page can leave, and no page in use could free its frame later.
bool stuck(kvp_pager & p) {
    size_t idle = p.free_frames.size();
    for (const frame_chain & c : p.chains) {
        idle += c.count;
    }
    return idle == p.frames.size();
}

void fail_stuck(kvp_pager & p) {
    char text[512];
    const double mib = double(p.frame_bytes) / 1048576.0;
    if (!p.spill.is_open()) {
        snprintf(text, sizeof text, "K/V needs more than its %zu frames of %.2f MiB, and there is no spill "
            "directory: set one, allow more memory, or use a shorter context", p.frames.size(), mib);
    } else {
        snprintf(text, sizeof text, "K/V needs more than its %zu frames of %.2f MiB and the spill file in %s, "
            "which has %.1f MiB and cannot grow: make room on that disk, raise the cap of the spill file, allow "
            "more memory, or use a shorter context", p.frames.size(), mib, p.spill.dir().c_str(), double(p.slots) * mib);
    }
    fail_locked(p, -ENOSPC, text);
}

}  // namespace

void chain_remove(kvp_pager & p, uint32_t f) {
    frame & fr = p.frames[f];
    if (fr.list == frame_list::none) {
        return;
    }
    frame_chain & c = chain(p, fr.list);
    (fr.prev == NONE ? c.first : p.frames[fr.prev].next) = fr.next;
    (fr.next == NONE ? c.last : p.frames[fr.next].prev) = fr.prev;
    c.count--;
    fr.list = frame_list::none;
    fr.prev = fr.next = NONE;
}

void chain_push_used(kvp_pager & p, uint32_t f, bool as_oldest) {
    chain_push(p, f, frame_list::used, as_oldest);
}

void settle(kvp_pager & p, page_id id) {
    page_entry & e  = p.at(id);
    layer_state & l = *p.layers[id.layer];
    frame_list list = frame_list::used;
    if (e.ahead) {
        list = frame_list::ahead;
    } else if (l.tail == id.page && (l.tail_kept || p.tails_kept < p.frames.size() / 2)) {
        // At most half of the frames, so that frames are left to stream through.
        p.tails_kept += !l.tail_kept;
        l.tail_kept = true;
        list        = frame_list::tail;
    }
    if (p.frames[e.frame].list != list) {
        chain_remove(p, e.frame);
        chain_push(p, e.frame, list, false);
    }
}

void forget_tail(kvp_pager & p, page_id id) {
    layer_state & l = *p.layers[id.layer];
    if (l.tail == id.page && l.tail_kept) {
        l.tail_kept = false;
        p.tails_kept--;
    }
}

void move_tail(kvp_pager & p, page_id id) {
    layer_state & l = *p.layers[id.layer];
    if (l.tail == id.page) {
        return;
    }
    if (l.tail != NONE) {
        const page_entry & old = l.pages[l.tail];
        if (old.frame != NONE && p.frames[old.frame].list == frame_list::tail) {
            chain_remove(p, old.frame);
            chain_push(p, old.frame, frame_list::used, false);
        }
    }
    l.tail = id.page;
}

void leave_frame(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    e.state      = page_state::absent;
    e.frame      = NONE;
    e.ahead      = false;
    e.prefetched = false;
    forget_tail(p, id);
}

bool choose_frame(kvp_pager & p, bool demand, frame_choice & out) {
    out = frame_choice();
    if (!p.free_frames.empty()) {
        out.frame = p.free_frames.back();
        p.free_frames.pop_back();
        return true;
    }
    uint32_t f = find_stale(p, demand);
    if (f == NONE) {
        f = find_recent(p, demand);
    }
    if (f == NONE && demand) {
        f = find_any(p);
    }
    if (f == NONE) {
        return false;
    }
    const page_id id = p.frames[f].owner;
    chain_remove(p, f);
    p.streaming = true;
    out.frame   = f;
    if (p.at(id).dirty) {
        p.at(id).state = page_state::evicting;
        out.victim     = id;
    } else {
        leave_frame(p, id);
        p.stats.evictions++;
    }
    return true;
}

void grant(kvp_pager & p) {
    while (!p.queue.empty() && p.error.load() == 0) {
        const page_id id = p.queue.front();
        page_entry & e   = p.at(id);
        if (e.waiting == 0) {
            p.queue.pop_front();
            e.state = page_state::absent;
            continue;
        }
        frame_choice choice;
        if (!choose_frame(p, true, choice)) {
            if (stuck(p)) {
                fail_stuck(p);
            }
            return;
        }
        p.queue.pop_front();
        start_load(p, id, choice, true);
    }
}

}  // namespace kvp
