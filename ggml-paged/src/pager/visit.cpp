// Handing out the pages of a scan to threads.
#include <cerrno>

#include "pager/pager.h"
#include "pager/scan.h"

using namespace kvp;

namespace {

void give(kvp_scan & s, uint32_t index, kvp_page * page) {
    const page_entry & e = s.entry(index);
    page->k = s.p.frame_data(e.frame);
    page->v = page->k + s.p.layers[s.layer]->v_offset;
    page->generation = e.generation;
}

void visited(kvp_scan & s, uint32_t index) {
    page_entry & e = s.entry(index);
    (s.missed[index] ? s.p.stats.misses : s.p.stats.hits)++;
    note_use(s.p, e);
    e.seen = s.p.layers[s.layer]->scan_no;
}

void wait(kvp_scan & s, lock_t & lock) {
    const uint64_t start = now_ns();
    s.cv.wait(lock);
    s.p.stats.wait_ns += now_ns() - start;
}

void drop_demand(kvp_scan & s) {
    if (s.demand == NONE) {
        return;
    }
    const uint32_t index = s.demand;
    page_entry & e       = s.entry(index);
    s.demand = NONE;
    e.waiting--;
    if (e.state == page_state::resident || e.state == page_state::loading) {
        e.ahead = true;  // about to be used
    } else if (s.state[index] == visit::asked) {
        s.state[index] = visit::todo;
        s.again.push_back(index);
    }
    advance(s.p, s.id(index));
}

// Waits for one page for all threads that found no ready page. This page cannot be evicted
// before its use, so that the scan goes on with a single frame.
void ensure_demand(kvp_scan & s) {
    if (s.demand != NONE && (s.current == NONE || s.current == s.demand)) {
        return;
    }
    drop_demand(s);
    while (!s.asked.empty() && s.state[s.asked.front()] != visit::asked) {
        s.asked.pop_front();
    }
    uint32_t index = s.current;
    if (index == NONE && !s.asked.empty()) {
        index = s.asked.front();
    }
    if (index == NONE && (index = next_todo(s)) != NONE) {
        take_todo(s);
        s.state[index] = visit::asked;
        s.asked.push_back(index);
    }
    if (index == NONE) {
        return;
    }
    s.missed[index] = 1;
    s.demand        = index;
    s.entry(index).waiting++;
    advance(s.p, s.id(index));
    if (usable(s.entry(index))) {
        s.cv.notify_all();
    }
}

// Makes a ready page current; false without one.
bool find_current(kvp_scan & s) {
    if (s.current != NONE) {
        return usable(s.entry(s.current));
    }
    uint32_t index = NONE;
    if (s.demand != NONE && usable(s.entry(s.demand))) {
        index = s.demand;
    }
    while (index == NONE && !s.ready.empty()) {
        const uint32_t first = s.ready.front();
        s.ready.pop_front();
        if (s.state[first] != visit::ready) {
            continue;
        }
        if (usable(s.entry(first))) {
            index = first;
        } else {
            s.state[first] = visit::todo;  // the page left its frame before a thread took it
            s.again.push_back(first);
        }
    }
    if (index == NONE) {
        return false;
    }
    s.state[index] = visit::taken;
    s.current      = index;
    s.next_part    = 0;
    s.open--;
    return true;
}

void take_part(kvp_scan & s, uint32_t * index, uint32_t * part, kvp_page * page) {
    const uint32_t at = s.current;
    page_entry & e    = s.entry(at);
    if (s.next_part == 0) {
        visited(s, at);
    }
    e.pins++;
    chain_remove(s.p, e.frame);
    if (s.demand == at) {
        s.demand = NONE;
        e.waiting--;
    }
    *index = at;
    *part  = s.next_part++;
    give(s, at, page);
    if (s.next_part == s.parts) {
        e.ahead   = false;
        s.current = NONE;
    }
    if (s.claimers > 0) {
        if (s.current != NONE || s.open == 0) {
            s.cv.notify_all();
        } else {
            ensure_demand(s);
        }
    } else {
        drop_demand(s);
    }
    pump(s);
}

}  // namespace

int kvp_scan_claim(kvp_scan * scan, uint32_t * index, uint32_t * part, kvp_page * page) {
    kvp_scan & s = *scan;
    if (s.ordered()) {
        return kvp_set_error(-EINVAL, "parts of an ordered scan cannot be claimed: its threads wait for every page");
    }
    guard g(s.p);
    for (;;) {
        if (s.p.error.load() != 0) {
            return sticky(s.p);
        }
        if (find_current(s)) {
            take_part(s, index, part, page);
            return 1;
        }
        if (s.current == NONE && s.open == 0) {
            return 0;
        }
        ensure_demand(s);
        if (s.demand != NONE && usable(s.entry(s.demand))) {
            continue;
        }
        s.claimers++;
        wait(s, g.lock);
        s.claimers--;
    }
}

int kvp_scan_wait(kvp_scan * scan, uint32_t index, kvp_page * page) {
    kvp_scan & s = *scan;
    if (!s.ordered() || index >= s.n) {
        return kvp_set_error(-EINVAL, "index %u cannot be waited for in a scan of %u pages with %u consumers", index, s.n, s.consumers);
    }
    guard g(s.p);
    page_entry & e = s.entry(index);
    if (s.state[index] != visit::taken && s.p.error.load() == 0) {
        s.missed[index] = s.missed[index] || !usable(e);
        if (!usable(e)) {
            e.waiting++;
            advance(s.p, s.id(index));
            while (s.state[index] != visit::taken && !usable(e) && s.p.error.load() == 0) {
                wait(s, g.lock);
            }
            e.waiting--;
        }
        if (s.state[index] != visit::taken && s.p.error.load() == 0) {
            s.state[index] = visit::taken;
            chain_remove(s.p, e.frame);
            e.pins++;
            visited(s, index);
        }
    }
    if (s.p.error.load() != 0) {
        advance(s.p, s.id(index));
        return sticky(s.p);
    }
    give(s, index, page);
    pump(s);
    return 0;
}

void kvp_scan_release(kvp_scan * scan, uint32_t index) {
    kvp_scan & s = *scan;
    if (index >= s.n || s.state.empty()) {
        return;
    }
    guard g(s.p);
    if (s.ordered()) {
        if (s.left[index] == 0 || --s.left[index] > 0) {
            return;
        }
        s.state[index] = visit::done;
    } else if (s.current == index) {
        s.entry(index).ahead = true;  // the page has parts to hand out
    }
    let_go(s.p, s.id(index));
    pump(s);
}
