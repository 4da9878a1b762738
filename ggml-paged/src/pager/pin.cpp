// Pins, prefetch and drop.
#include "pager/state.h"

#include <algorithm>
#include <cerrno>

#include "pager/pager.h"

namespace kvp {

int check_page(kvp_pager * p, uint32_t layer, uint32_t page, const char * what) {
    if (p == nullptr || !p->started) {
        return kvp_set_error(-EINVAL, "a page cannot be %s before the pager has started", what);
    }
    if (layer >= p->layers.size() || page >= p->layers[layer]->pages.size()) {
        return kvp_set_error(-EINVAL, "page %u of layer %u cannot be %s: there are %zu layers, and that layer has %zu pages",
            page, layer, what, p->layers.size(), layer < p->layers.size() ? p->layers[layer]->pages.size() : size_t(0));
    }
    return 0;
}

// Pins may write, so they wait for a write-back of the page; visits of a scan need not.
static bool can_pin(const page_entry & e) {
    return usable(e) && !e.writing;
}

int hold(kvp_pager & p, page_id id, lock_t & lock) {
    if (p.error.load() != 0) {
        return sticky(p);
    }
    page_entry & e = p.at(id);
    (usable(e) ? p.stats.hits : p.stats.misses)++;
    if (!can_pin(e)) {
        const uint64_t start = now_ns();
        e.waiting++;
        advance(p, id);
        while (!can_pin(e) && p.error.load() == 0) {
            p.cv_of(id).wait(lock);
        }
        e.waiting--;
        p.stats.wait_ns += now_ns() - start;
        if (p.error.load() != 0) {
            advance(p, id);
            return sticky(p);
        }
    }
    chain_remove(p, e.frame);
    e.pins++;
    note_use(p, e);
    if (++p.uses > 8 * uint64_t(p.frames.size()) + 64) {
        next_round(p);  // without scans, pins alone give the age of pages
    }
    return 0;
}

void let_go(kvp_pager & p, page_id id, row_range written) {
    page_entry & e = p.at(id);
    if (e.pins == 0) {
        return;
    }
    e.pins--;
    if (!written.empty() && !e.dropping) {
        mark_dirty(e, written);
        e.written = std::max(e.written, written.end);
        e.changes++;
        move_tail(p, id);
    }
    advance(p, id);
    if (e.pins == 0) {
        p.cv_of(id).notify_all();
    }
}

}  // namespace kvp

using namespace kvp;

int kvp_pin(kvp_pager * pager, uint32_t layer, uint32_t page, kvp_page * out) {
    int rc = check_page(pager, layer, page, "pinned");
    if (rc != 0) {
        return rc;
    }
    kvp_pager & p = *pager;
    const page_id id{layer, page};
    guard g(p);
    rc = hold(p, id, g.lock);
    if (rc != 0) {
        return rc;
    }
    out->k = p.frame_data(p.at(id).frame);
    out->v = out->k + p.layers[layer]->v_offset;
    out->generation = p.at(id).generation;
    return 0;
}

void kvp_unpin(kvp_pager * pager, uint32_t layer, uint32_t page, int dirty) {
    if (check_page(pager, layer, page, "unpinned") == 0) {
        guard g(*pager);
        let_go(*pager, {layer, page}, {0, dirty != 0 ? pager->page_cells : 0});
    }
}

void kvp_unpin_rows(kvp_pager * pager, uint32_t layer, uint32_t page, uint32_t first, uint32_t n) {
    if (check_page(pager, layer, page, "unpinned") == 0) {
        guard g(*pager);
        const uint32_t from = std::min(first, pager->page_cells);
        let_go(*pager, {layer, page}, {from, from + std::min(n, pager->page_cells - from)});
    }
}

void kvp_prefetch(kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n) {
    if (pager == nullptr || !pager->started || layer >= pager->layers.size()) {
        return;
    }
    kvp_pager & p = *pager;
    guard g(p);
    for (uint32_t i = 0; i < n; i++) {
        const page_id id{layer, pages[i]};
        if (id.page >= p.layers[layer]->pages.size()) {
            continue;
        }
        const page_entry & e = p.at(id);
        const bool away = e.state == page_state::absent && has_content(e);
        if (away && !try_ahead(p, id)) {
            return;
        }
    }
}

void kvp_drop(kvp_pager * pager, uint32_t group, uint32_t page) {
    if (pager == nullptr || !pager->started) {
        return;
    }
    kvp_pager & p = *pager;
    guard g(p);
    for (uint32_t layer = 0; layer < p.layers.size(); layer++) {
        const layer_state & l = *p.layers[layer];
        if (l.desc.group != group || page >= l.pages.size()) {
            continue;
        }
        const page_id id{layer, page};
        page_entry & e = p.at(id);
        e.generation++;
        e.changes++;
        e.dropping = true;
        p.stats.drops++;
        advance(p, id);
    }
}

uint64_t kvp_page_version(const kvp_pager * pager, uint32_t layer, uint32_t page) {
    uint64_t version;
    kvp_page_versions(pager, layer, &page, 1, &version);
    return version;
}

void kvp_page_versions(const kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n, uint64_t * out) {
    if (pager == nullptr || !pager->started || layer >= pager->layers.size()) {
        std::fill_n(out, n, 0);
        return;
    }
    std::lock_guard<std::mutex> lock(pager->mutex);
    const std::vector<page_entry> & all = pager->layers[layer]->pages;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = pages[i] < all.size() ? pager->first_version + all[pages[i]].changes : 0;
    }
}

int kvp_resident(const kvp_pager * pager, uint32_t layer, uint32_t page) {
    if (pager == nullptr || !pager->started || layer >= pager->layers.size() || page >= pager->layers[layer]->pages.size()) {
        return 0;
    }
    std::lock_guard<std::mutex> lock(pager->mutex);
    const page_entry & e = pager->layers[layer]->pages[page];
    return e.state == page_state::resident && !e.dropping;
}

void kvp_held(const kvp_pager * pager, uint32_t group, uint64_t * bytes, uint32_t pages) {
    std::fill_n(bytes, pages, 0);
    std::lock_guard<std::mutex> lock(pager->mutex);
    for (const auto & layer : pager->layers) {
        if (layer->desc.group != group) {
            continue;
        }
        const uint32_t n = std::min<uint32_t>(pages, layer->pages.size());
        for (uint32_t page = 0; page < n; page++) {
            const page_entry & e = layer->pages[page];
            if (e.state == page_state::resident && !e.dropping) {
                bytes[page] += layer->row_k + layer->row_v;
            }
        }
    }
}

void kvp_pager_stats(const kvp_pager * pager, kvp_stats * out) {
    const kvp_pager & p = *pager;
    std::lock_guard<std::mutex> lock(p.mutex);
    *out = p.stats;
    out->frames      = p.frames.size();
    out->frames_used = p.frames.size() - p.free_frames.size() - p.returned.size();
    out->arena_bytes = p.frames.size() * p.frame_bytes;
    out->spill_bytes = uint64_t(p.slots) * p.frame_bytes;
}
