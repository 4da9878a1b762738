#include "fake_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

fake_device::fake_device(const attention_case & c, watched_frames & s, const options & o)
    : case_(c), source_(s), options_(o), rng_(o.seed), thread_([this] { engine(); }) {}

fake_device::~fake_device() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        quit_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

kvp_device fake_device::device() {
    kvp_device d{};
    d.ctx   = this;
    d.begin = [](void * c, uint32_t slots, size_t bytes, uint32_t events) { return self(c)->begin(slots, bytes, events); };
    d.end   = [](void * c) { self(c)->end(); };
    d.drain = [](void * c) { return self(c)->drain(); };
    d.last_error = [](void *) -> const char * { return "the fake device was told to fail"; };
    d.event_sync = [](void * c, uint32_t e) { return self(c)->sync(e); };
    d.elapsed    = [](void *, uint32_t, uint32_t, uint64_t * ns) { *ns = 1000; return 0; };
    fill(&d);
    return d;
}

void fake_device::fill(kvp_device * d) {
    d->h2d = [](void * c, kvp_stream stream, uint32_t slot, size_t offset, const void * src, size_t bytes) {
        work w(kind::copy);
        w.slot = slot, w.offset = offset, w.src = src, w.bytes = bytes;
        return self(c)->enqueue(stream, std::move(w));
    };
    d->event_record = [](void * c, kvp_stream stream, uint32_t e) {
        work w(kind::record);
        w.event = e;
        return self(c)->enqueue(stream, std::move(w));
    };
    d->event_wait = [](void * c, kvp_stream stream, uint32_t e) {
        work w(kind::wait);
        w.event = e;
        return self(c)->enqueue(stream, std::move(w));
    };
    d->attend_hot = [](void * c, const kvp_page_ref * pages, uint32_t n) {
        work w(kind::hot);
        w.pages.assign(pages, pages + n);
        return self(c)->enqueue(KVP_STREAM_COMPUTE, std::move(w));
    };
    d->attend_slot = [](void * c, uint32_t slot, const kvp_page_ref * page) {
        work w(kind::slot);
        w.slot = slot;
        w.pages.assign(1, *page);
        return self(c)->enqueue(KVP_STREAM_COMPUTE, std::move(w));
    };
    d->merge_host = [](void * c, const kvp_partial * p) {
        work w(kind::merge);
        w.host = *p;
        return self(c)->enqueue(KVP_STREAM_COMPUTE, std::move(w));
    };
    d->finish = [](void * c) { return self(c)->enqueue(KVP_STREAM_COMPUTE, work(kind::finish)); };
}

int fake_device::call() {
    if (failed_) {
        violation("a call after a call had failed");
    }
    if (calls_++ == options_.fail_at) {
        failed_ = true;
        return -EREMOTEIO;
    }
    return 0;
}

int fake_device::begin(uint32_t slots, size_t bytes, uint32_t events) {
    std::lock_guard<std::mutex> lock(mutex_);
    failed_ = false;
    if (open_) {
        violation("begin without end");
    }
    if (int err = call()) {
        return err;
    }
    open_ = true;
    slots_.assign(slots, staging{});
    for (staging & s : slots_) {
        s.bytes.assign(bytes, 0xff);
    }
    events_.assign(events, event{});
    const size_t floats = kvp::partial_floats(case_.rows(), case_.shape.dv);
    state_.assign(floats, 0);
    scratch_.assign(floats, 0);
    kvp::partial_clear(kvp::partial_at(state_.data(), case_.rows(), case_.shape.dv));
    return 0;
}

void fake_device::end() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!open_) {
        violation("end without begin");
    }
    // Without slots and a host partial the run may leave before the work is done.
    const bool busy = !streams_[0].empty() || !streams_[1].empty();
    const bool hot  = slots_.empty() && std::none_of(streams_[1].begin(), streams_[1].end(),
                                                     [](const work & w) { return w.what == kind::merge; });
    if (busy && !hot) {
        violation("work under way at the end");
    }
    wait_empty(lock);
    open_ = false;
}

int fake_device::enqueue(kvp_stream stream, work w) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int err = call();
    // A copy that fails may nevertheless have been started.
    if (err != 0 && w.what != kind::copy) {
        return err;
    }
    if (w.what == kind::record) {
        events_[w.event].recorded++;
    }
    if (w.what == kind::wait) {
        w.count = events_[w.event].recorded;
        if (stream == KVP_STREAM_COPY ? options_.drop_copy_waits : options_.drop_compute_waits) {
            return 0;
        }
    }
    streams_[stream].push_back(std::move(w));
    credit_ += rng_() % 5;
    changed_.notify_all();
    return err;
}

int fake_device::sync(uint32_t e) {
    std::unique_lock<std::mutex> lock(mutex_);
    // Another thread may be enqueueing and not know of this failure yet, so it does not
    // forbid calls.
    if (calls_++ == options_.fail_at) {
        return -EREMOTEIO;
    }
    if (options_.drop_syncs) {
        return 0;
    }
    const uint64_t count = events_[e].recorded;
    waiting_++;
    changed_.notify_all();
    changed_.wait(lock, [&] { return events_[e].done >= count; });
    waiting_--;
    return 0;
}

int fake_device::drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_empty(lock);
    return 0;
}

void fake_device::wait_empty(std::unique_lock<std::mutex> & lock) {
    waiting_++;
    changed_.notify_all();
    changed_.wait(lock, [&] { return streams_[0].empty() && streams_[1].empty(); });
    waiting_--;
}

bool fake_device::ready(int stream) const {
    if (streams_[stream].empty()) {
        return false;
    }
    const work & w = streams_[stream].front();
    return w.what != kind::wait || events_[w.event].done >= w.count;
}

int fake_device::ready_stream() {
    const bool copy = ready(0), compute = ready(1);
    if (copy && compute) {
        switch (options_.seed % 3) {
            case 0:  return 0;
            case 1:  return 1;
            default: return (int) (rng_() % 2);
        }
    }
    return copy ? 0 : compute ? 1 : -1;
}

void fake_device::engine() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        int stream = -1;
        changed_.wait(lock, [&] {
            const bool go = waiting_ > 0 || options_.when == pace::eager ||
                (options_.when == pace::random && credit_ > 0);
            stream = go ? ready_stream() : -1;
            return quit_ || stream >= 0;
        });
        if (stream < 0) {
            return;
        }
        credit_ -= credit_ > 0;
        step(stream);
        changed_.notify_all();
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
    }
}

void fake_device::step(int stream) {
    work & w = streams_[stream].front();
    const bool two = w.what == kind::copy || w.what == kind::slot;
    if (w.what == kind::copy) {
        step_copy(w);
    } else if (w.what == kind::slot) {
        step_slot(w);
    } else if (w.what == kind::record) {
        events_[w.event].done++;
    } else if (w.what == kind::hot) {
        for (const kvp_page_ref & ref : w.pages) {
            attend(ref, case_.contents[ref.page].data());
        }
    } else if (w.what == kind::merge) {
        kvp::partial_merge(kvp::partial_at(state_.data(), w.host.rows, w.host.dv), w.host);
        merges_++;
    } else if (w.what == kind::finish) {
        out_.assign((size_t) case_.rows() * case_.shape.dv, 0);
        kvp::partial_finish(kvp::partial_at(state_.data(), case_.rows(), case_.shape.dv),
                            case_.sinks.empty() ? nullptr : case_.sinks.data(), case_.shape.heads, out_.data());
    }
    if (two && !w.begun) {
        w.begun = true;
    } else {
        streams_[stream].pop_front();
    }
}

void fake_device::step_copy(work & w) {
    staging &     s    = slots_[w.slot];
    const int64_t page = source_.page_at(w.src);
    if (page < 0) {
        violation("a copy reads a page that is not pinned");
    }
    if (s.reading || (!s.read && s.page != page)) {
        violation("a copy overwrites a page that is still needed");
    }
    const size_t half  = w.bytes / 2;
    const size_t begin = w.begun ? half : 0, bytes = w.begun ? w.bytes - half : half;
    if (!w.begun) {
        if (s.page != page || s.read) {
            const uint32_t cells = page < 0 ? 0 : case_.cells_of((uint32_t) page);
            std::fill(s.bytes.begin(), s.bytes.end(), 0xff);
            s.missing = cells * (case_.row_k + case_.row_v);
        }
        s.page    = page;
        s.writing = true;
        s.read    = false;
    } else {
        s.writing = false;
        // A copy of the whole page carries the padding as well.
        s.missing -= std::min(s.missing, w.bytes);
    }
    if (w.offset + w.bytes > s.bytes.size()) {
        violation("a copy goes beyond its slot");
    } else if (page >= 0 && !source_.read((const uint8_t *) w.src + begin, bytes, s.bytes.data() + w.offset + begin)) {
        violation("a page is unpinned while a copy reads it");
    }
}

void fake_device::step_slot(work & w) {
    staging & s = slots_[w.slot];
    if (s.writing || s.missing > 0 || s.page != w.pages[0].page || s.read) {
        violation("a launch reads a slot whose copy is not complete");
    }
    s.reading = !w.begun;
    if (w.begun) {
        attend(w.pages[0], s.bytes.data());
        s.read = true;
    }
}

void fake_device::attend(const kvp_page_ref & ref, const uint8_t * page) {
    const kvp_partial part = kvp::partial_at(scratch_.data(), case_.rows(), case_.shape.dv);
    case_.attend(ref, page, page + case_.v_offset, part);
    kvp::partial_merge(kvp::partial_at(state_.data(), case_.rows(), case_.shape.dv), part);
    attended_.insert(ref.page);
}

std::vector<std::string> fake_device::violations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return violations_;
}

std::vector<float> fake_device::out() {
    std::lock_guard<std::mutex> lock(mutex_);
    return out_;
}

int fake_device::calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
}

std::multiset<uint32_t> fake_device::attended() {
    std::lock_guard<std::mutex> lock(mutex_);
    return attended_;
}

uint32_t fake_device::host_merges() {
    std::lock_guard<std::mutex> lock(mutex_);
    return merges_;
}
