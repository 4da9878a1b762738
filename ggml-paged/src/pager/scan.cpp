// Beginning and end of scans, and reading ahead for them.
#include "pager/scan.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "pager/pager.h"

namespace kvp {

namespace {

constexpr uint32_t AHEAD_LAYERS = 2;

uint32_t index_of(const kvp_scan & s, uint32_t page) {
    if (s.sorted.empty()) {
        const uint32_t * at = std::lower_bound(s.pages, s.pages + s.n, page);
        return at != s.pages + s.n && *at == page ? uint32_t(at - s.pages) : NONE;
    }
    auto at = std::lower_bound(s.sorted.begin(), s.sorted.end(), std::make_pair(page, 0u));
    return at != s.sorted.end() && at->first == page ? at->second : NONE;
}

// Starts to read the page at an index of the scan's list. False: not possible now.
bool ask(kvp_scan & s, uint32_t index) {
    const page_entry & e = s.entry(index);
    if (usable(e)) {
        if (!s.ordered()) {
            s.state[index] = visit::ready;
            s.ready.push_back(index);
            s.cv.notify_one();
        }
        return true;
    }
    if (e.dropping || e.writing || e.state == page_state::evicting) {
        return false;
    }
    s.state[index]  = visit::asked;
    s.missed[index] = 1;
    if (e.state == page_state::loading || e.state == page_state::queued || try_ahead(s.p, s.id(index))) {
        s.asked.push_back(index);
        return true;
    }
    s.state[index]  = visit::todo;
    s.missed[index] = 0;
    return false;
}

// Pages that the next layers used last time will be wanted after this layer's.
void read_next_layers(kvp_scan & s) {
    kvp_pager & p = s.p;
    while (p.streaming && s.ahead_layer != NONE && s.ahead_hops < AHEAD_LAYERS && ahead_room(p)) {
        const layer_state & l = *p.layers[s.ahead_layer];
        if (s.ahead_at >= l.last_list.size()) {
            s.ahead_layer = l.next == s.layer ? NONE : l.next;
            s.ahead_at    = 0;
            s.ahead_hops++;
            continue;
        }
        const page_id id{s.ahead_layer, l.last_list[s.ahead_at]};
        const page_entry & e = p.at(id);
        if (e.state == page_state::absent && has_content(e) && !try_ahead(p, id)) {
            return;
        }
        s.ahead_at++;
    }
}

int check_list(kvp_scan & s) {
    const size_t pages = s.p.layers[s.layer]->pages.size();
    bool ascending = true;
    for (uint32_t i = 0; i < s.n; i++) {
        if (s.pages[i] >= pages) {
            return kvp_set_error(-EINVAL, "a scan of layer %u lists page %u: the layer has %zu", s.layer, s.pages[i], pages);
        }
        ascending = ascending && (i == 0 || s.pages[i - 1] < s.pages[i]);
    }
    if (ascending) {
        return 0;
    }
    for (uint32_t i = 0; i < s.n; i++) {
        s.sorted.emplace_back(s.pages[i], i);
    }
    std::sort(s.sorted.begin(), s.sorted.end());
    for (uint32_t i = 1; i < s.n; i++) {
        if (s.sorted[i - 1].first == s.sorted[i].first) {
            return kvp_set_error(-EINVAL, "a scan of layer %u lists page %u twice", s.layer, s.sorted[i].first);
        }
    }
    return 0;
}

void enter(kvp_scan & s) {
    kvp_pager & p   = s.p;
    layer_state & l = *p.layers[s.layer];
    if (l.scan_round == p.round) {
        next_round(p);
    }
    l.scan_round = p.round;
    l.scan_no++;
    l.active_scans++;
    l.last_list.assign(s.pages, s.pages + s.n);
    if (p.last_scanned != NONE && p.last_scanned != s.layer) {
        p.layers[p.last_scanned]->next = s.layer;
    }
    p.last_scanned = s.layer;
    s.ahead_layer  = l.next;
    p.scans.push_back(&s);
    for (uint32_t i = 0; i < s.n && !s.ordered(); i++) {
        if (usable(s.entry(i))) {
            s.state[i] = visit::ready;
            s.ready.push_back(i);
        }
    }
    pump(s);
}

}  // namespace

uint32_t next_todo(kvp_scan & s) {
    while (!s.again.empty()) {
        if (s.state[s.again.front()] == visit::todo) {
            return s.again.front();
        }
        s.again.pop_front();
    }
    while (s.cursor < s.n && s.state[s.cursor] != visit::todo) {
        s.cursor++;
    }
    return s.cursor < s.n ? s.cursor : NONE;
}

void take_todo(kvp_scan & s) {
    if (s.again.empty()) {
        s.cursor++;
    } else {
        s.again.pop_front();
    }
}

void pump(kvp_scan & s) {
    while (s.p.error.load() == 0 && s.p.queue.empty() && ahead_room(s.p)) {
        const uint32_t index = next_todo(s);
        if (index == NONE) {
            read_next_layers(s);
            return;
        }
        if (!ask(s, index)) {
            return;
        }
        take_todo(s);
    }
}

void pump_scans(kvp_pager & p) {
    for (kvp_scan * s : p.scans) {
        pump(*s);
    }
}

void wake_scans(kvp_pager & p) {
    for (kvp_scan * s : p.scans) {
        s->cv.notify_all();
    }
}

void scans_ready(kvp_pager & p, page_id id) {
    for (kvp_scan * s : p.scans) {
        const uint32_t index = s->layer == id.layer ? index_of(*s, id.page) : NONE;
        if (index == NONE) {
            continue;
        }
        visit & v = s->state[index];
        if (!s->ordered() && usable(p.at(id)) && (v == visit::todo || v == visit::asked)) {
            v = visit::ready;
            s->ready.push_back(index);
        }
        s->cv.notify_all();
    }
}

}  // namespace kvp

using namespace kvp;

int kvp_scan_begin(kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n,
                   uint32_t consumers, uint32_t parts, kvp_scan ** out) {
    *out = nullptr;
    int rc = check_page(pager, layer, 0, "scanned");
    if (rc != 0) {
        return rc;
    }
    if (consumers == 0 && parts == 0) {
        return kvp_set_error(-EINVAL, "a scan needs consumers (ordered) or parts (unordered)");
    }
    try {
        std::unique_ptr<kvp_scan> s(new kvp_scan(*pager, layer, pages, n, consumers, parts));
        rc = check_list(*s);
        if (rc != 0) {
            return rc;
        }
        s->state.assign(n, visit::todo);
        s->missed.assign(n, 0);
        s->left.assign(consumers > 0 ? n : 0, consumers);
        s->open = n;
        guard g(*pager);
        if (pager->error.load() != 0) {
            return sticky(*pager);
        }
        enter(*s);
        *out = s.release();
    } catch (const std::bad_alloc &) {
        return kvp_set_error(-ENOMEM, "no memory for a scan of %u pages", n);
    }
    return 0;
}

void kvp_scan_end(kvp_scan * scan) {
    if (scan == nullptr) {
        return;
    }
    kvp_pager & p = scan->p;
    guard g(p);
    p.scans.erase(std::find(p.scans.begin(), p.scans.end(), scan));
    p.layers[scan->layer]->active_scans--;
    if (scan->demand != NONE) {
        scan->entry(scan->demand).waiting--;
        advance(p, scan->id(scan->demand));
    }
    // After an error some consumers may never have visited a page that others did.
    for (uint32_t i = 0; i < scan->left.size(); i++) {
        if (scan->state[i] == visit::taken) {
            let_go(p, scan->id(i));
        }
    }
    delete scan;
}
