// Room in the spill file: slots of the size of a frame.
#include "pager/state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "pager/pager.h"
#include "pager/sums.h"

namespace kvp {

namespace {

constexpr uint64_t GROW_STEP = 16u << 20;  // bytes taken at a time when nothing was reserved

// Makes the spill file hold `target` slots. Called without the mutex.
int grow_to(kvp_pager & p, uint64_t target) {
    std::lock_guard<std::mutex> growing(p.spill.grow_mutex());
    uint64_t have;
    {
        std::lock_guard<std::mutex> lock(p.mutex);
        have = p.slots;
    }
    if (have >= target) {
        return 0;
    }
    if (target >= NONE || !p.spill.fits(target * p.frame_bytes)) {
        return -ENOSPC;
    }
    const int rc = p.spill.grow(have * p.frame_bytes, target * p.frame_bytes);
    if (rc != 0) {
        return rc;
    }
    std::lock_guard<std::mutex> lock(p.mutex);
    for (uint64_t s = target; s-- > have;) {
        p.free_slots.push_back(uint32_t(s));
    }
    p.slots   = uint32_t(target);
    p.no_room = false;
    return 0;
}

void grow_lazily(kvp_pager & p, lock_t & lock) {
    const uint64_t have = p.slots;
    uint64_t step = std::max<uint64_t>(GROW_STEP / p.frame_bytes, 1);
    if (p.spill.cap() != 0) {
        const uint64_t most = p.spill.cap() / p.frame_bytes;
        step = std::min(step, most > have ? most - have : 0);
    }
    if (step == 0) {
        return;
    }
    lock.unlock();
    if (grow_to(p, have + step) != 0 && step > 1) {
        grow_to(p, have + 1);
    }
    lock.lock();
}

int no_room_for(kvp_pager & p, uint64_t pages, uint64_t slots, int err) {
    const double mib = double(p.frame_bytes) / 1048576.0;
    if (!p.spill.is_open()) {
        return kvp_set_error(-ENOSPC, "room for %llu pages of K/V is needed, memory has %zu frames of %.2f MiB and "
            "there is no spill directory: set one, allow more memory, or use a shorter context",
            (unsigned long long) pages, p.frames.size(), mib);
    }
    if (!p.spill.fits(slots * p.frame_bytes)) {
        return kvp_set_error(-ENOSPC, "room for %llu pages of K/V is needed, which takes %.1f MiB of the spill file in "
            "%s beside %zu frames of %.2f MiB, and the spill file is limited to %.1f MiB: raise the limit, allow more "
            "memory, or use a shorter context", (unsigned long long) pages, double(slots) * mib, p.spill.dir().c_str(),
            p.frames.size(), mib, double(p.spill.cap()) / 1048576.0);
    }
    return kvp_set_error(err, "room for %llu pages of K/V is needed, and the spill file in %s cannot grow to %.1f MiB: "
        "%s; make room on that disk, allow more memory, or use a shorter context", (unsigned long long) pages,
        p.spill.dir().c_str(), double(slots) * mib, strerror(-err));
}

}  // namespace

void free_slot(kvp_pager & p, page_entry & e) {
    if (e.slot != NONE) {
        p.free_slots.push_back(e.slot);
        p.no_room = false;
    }
    e.slot    = NONE;
    e.in_slot = false;
    e.sums.reset();
}

bool slot_for(kvp_pager & p, page_id id, lock_t & lock) {
    page_entry & e = p.at(id);
    if (e.slot != NONE) {
        return true;
    }
    if (p.free_slots.empty()) {
        grow_lazily(p, lock);
    }
    if (p.free_slots.empty()) {
        return false;
    }
    e.sums.reset(new (std::nothrow) uint32_t[sum_count(p.layers[id.layer]->page_bytes)]);
    if (!e.sums) {
        return false;
    }
    e.slot = p.free_slots.back();
    p.free_slots.pop_back();
    return true;
}

}  // namespace kvp

using namespace kvp;

int kvp_reserve(kvp_pager * pager, uint32_t group, uint32_t pages) {
    kvp_pager & p = *pager;
    uint64_t total = 0, slots = 0;
    uint32_t before = 0;
    {
        guard g(p);
        if (!p.started || group >= MAX_GROUPS) {
            return kvp_set_error(-EINVAL, "room was asked for in group %u, which does not exist: add its layers and start first", group);
        }
        if (p.error.load() != 0) {
            return sticky(p);
        }
        before = p.reserved[group];
        for (const auto & l : p.layers) {
            const bool same = l->desc.group == group;
            if (same && pages > l->pages.size()) {
                return kvp_set_error(-EINVAL, "room for %u pages was asked for in group %u, which has %zu", pages, group, l->pages.size());
            }
            total += same ? std::max(pages, before) : p.reserved[l->desc.group];
        }
        if (total > p.frames.size()) {
            // One slot more than pages that do not fit: then some page in a frame always
            // has a slot to leave to, or there is a free one.
            slots = total - p.frames.size() + 1;
        }
        if (slots <= p.slots) {
            p.reserved[group] = std::max(pages, before);
            return 0;
        }
        if (!p.spill.is_open()) {
            return no_room_for(p, total, slots, -ENOSPC);
        }
        p.reserved[group] = std::max(pages, before);
    }
    const int rc = grow_to(p, slots);
    if (rc != 0) {
        guard g(p);
        p.reserved[group] = before;
        return no_room_for(p, total, slots, rc);
    }
    return 0;
}
