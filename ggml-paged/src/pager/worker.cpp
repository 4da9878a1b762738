// The I/O threads, which do all reading, writing, clearing and rotating of pages.
#include "pager/transfer.h"

namespace kvp {

namespace {

void cancel_load(kvp_pager & p, page_id id) {
    page_entry & e = p.at(id);
    e.state      = page_state::absent;
    e.frame      = NONE;
    e.ahead      = false;
    e.prefetched = false;
}

// Writes the page that has to leave the frame of a job. False: the page stays and the
// job's page waits again, or an error occurred.
bool evict_victim(kvp_pager & p, const job & j, lock_t & lock) {
    page_entry & v = p.at(j.victim);
    const uint32_t f = v.frame;
    const bool room = slot_for(p, j.victim, lock);
    if (room && p.error.load() == 0 && write_page(p, j.victim, lock) == 0) {
        v.dirty   = false;
        v.in_slot = true;
        leave_frame(p, j.victim);
        p.stats.evictions++;
        advance(p, j.victim);
        p.cv_of(j.victim).notify_all();
        return true;
    }
    p.no_room = p.no_room || !room;
    p.frames[f].owner = j.victim;
    v.state = page_state::resident;
    cancel_load(p, j.id);
    if (p.at(j.id).waiting > 0) {
        p.at(j.id).state = page_state::queued;
        p.queue.push_front(j.id);
    }
    advance(p, j.id);
    p.cv_of(j.id).notify_all();
    advance(p, j.victim);
    wake_page(p, j.victim);
    grant(p);
    return false;
}

void load(kvp_pager & p, const job & j, lock_t & lock) {
    page_entry & e = p.at(j.id);
    if (j.victim.layer != NONE && !evict_victim(p, j, lock)) {
        return;
    }
    const layer_state & l = *p.layers[j.id.layer];
    source from = take_source(p, j.id);
    const uint32_t f = e.frame;
    const bool content = has_content(e);
    p.frames[f].zero = false;
    transfer t;
    lock.unlock();
    const uint64_t start = now_ns();
    fill(p, l, p.frame_data(f), from, t);
    const uint64_t ns  = now_ns() - start;
    const bool rotated = t.rc == 0 && content && !from.rotations.empty();
    if (rotated) {
        apply_rotations(l, p.page_cells, p.frame_data(f), from.rotations);
    }
    lock.lock();
    p.stats.reads += t.reads;
    p.stats.read_bytes += t.bytes;
    p.stats.extent_bytes += t.extent_bytes;
    p.stats.io_ns += ns;
    p.stats.zero_pages += !content;
    p.stats.rotations += rotated;
    if (t.rc != 0) {
        fail_read(p, j.id, t);
        cancel_load(p, j.id);
        p.frames[f].owner = page_id();
        p.returned.push_back(f);
        advance(p, j.id);
        return;
    }
    if (rotated) {
        mark_all_dirty(p, e);
    }
    load_done(p, j.id);
}

void rotate(kvp_pager & p, const job & j, lock_t & lock) {
    page_entry & e = p.at(j.id);
    source from = take_source(p, j.id);
    const uint32_t f = e.frame;
    lock.unlock();
    apply_rotations(*p.layers[j.id.layer], p.page_cells, p.frame_data(f), from.rotations);
    lock.lock();
    p.stats.rotations++;
    mark_all_dirty(p, e);
    load_done(p, j.id);
}

void run(kvp_pager & p, const job & j, lock_t & lock) {
    if (j.rotate) {
        rotate(p, j, lock);
    } else {
        load(p, j, lock);
    }
    if (j.ahead) {
        p.ahead_in_flight--;
    }
    pump_scans(p);
}

void write_ahead(kvp_pager & p, page_id id, lock_t & lock) {
    page_entry & e = p.at(id);
    e.to_write = false;
    const bool idle = e.state == page_state::resident && p.frames[e.frame].list == frame_list::used;
    if (!idle || !e.dirty || p.error.load() != 0) {
        return;
    }
    chain_remove(p, e.frame);
    e.writing = true;
    if (!slot_for(p, id, lock)) {
        p.no_room = true;
    } else if (write_page(p, id, lock) == 0) {
        e.dirty   = false;
        e.in_slot = true;
    }
    e.writing = false;
    advance(p, id);
    wake_page(p, id);
    pump_scans(p);
}

job take_front(std::deque<job> & jobs) {
    job j = jobs.front();
    jobs.pop_front();
    return j;
}

}  // namespace

void start_load(kvp_pager & p, page_id id, const frame_choice & choice, bool demand) {
    page_entry & e = p.at(id);
    frame & fr     = p.frames[choice.frame];
    e.state = page_state::loading;
    e.frame = choice.frame;
    e.ahead = !demand;
    fr.owner = id;
    if (!has_content(e) && fr.zero) {
        fr.zero = false;
        if (e.extra) {
            e.extra->rotations.clear();
        }
        p.stats.zero_pages++;
        load_done(p, id);
        return;
    }
    job j;
    j.id     = id;
    j.victim = choice.victim;
    j.ahead  = !demand;
    p.ahead_in_flight += !demand;
    (demand ? p.demand_jobs : p.ahead_jobs).push_back(j);
    p.io_cv.notify_one();
}

void start_rotation(kvp_pager & p, page_id id, bool demand) {
    page_entry & e = p.at(id);
    e.state = page_state::loading;
    job j;
    j.id     = id;
    j.rotate = true;
    j.ahead  = !demand;
    p.ahead_in_flight += !demand;
    (demand ? p.demand_jobs : p.ahead_jobs).push_back(j);
    p.io_cv.notify_one();
}

void promote(kvp_pager & p, page_id id) {
    for (auto it = p.ahead_jobs.begin(); it != p.ahead_jobs.end(); ++it) {
        if (it->id.layer == id.layer && it->id.page == id.page) {
            p.demand_jobs.push_back(*it);
            p.ahead_jobs.erase(it);
            return;
        }
    }
}

void worker_main(kvp_pager * pager) {
    kvp_pager & p = *pager;
    for (;;) {
        guard g(p);
        p.io_cv.wait(g.lock, [&] {
            return p.stopping || !p.demand_jobs.empty() || !p.ahead_jobs.empty() || !p.write_back.empty();
        });
        if (p.stopping) {
            return;
        }
        if (!p.demand_jobs.empty()) {
            run(p, take_front(p.demand_jobs), g.lock);
        } else if (!p.ahead_jobs.empty()) {
            run(p, take_front(p.ahead_jobs), g.lock);
        } else {
            const page_id id = p.write_back.front();
            p.write_back.pop_front();
            write_ahead(p, id, g.lock);
        }
    }
}

}  // namespace kvp
