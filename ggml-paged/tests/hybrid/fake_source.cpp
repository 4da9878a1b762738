#include "fake_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

fake_source::fake_source(const attention_case & c, const options & o) : case_(c), options_(o), rng_(o.seed), frames_(o.frames) {
    for (frame & f : frames_) {
        f.bytes.assign(c.page_bytes, 0xff);
    }
}

kvp::page_source fake_source::source() {
    return kvp::page_source{
        this,
        [](void * ctx, uint32_t page, kvp_page * out) { return static_cast<fake_source *>(ctx)->pin(page, out); },
        [](void * ctx, uint32_t page) { static_cast<fake_source *>(ctx)->unpin(page); },
        [](void * ctx, const uint32_t * pages, uint32_t n) { static_cast<fake_source *>(ctx)->prefetch(pages, n); },
    };
}

fake_source::frame * fake_source::find(int64_t page) {
    for (frame & f : frames_) {
        if (f.page == page) {
            return &f;
        }
    }
    return nullptr;
}

fake_source::frame * fake_source::unpinned() {
    if (frame * empty = find(-1)) {
        return empty;
    }
    for (frame & f : frames_) {
        if (f.pins == 0) {
            return &f;
        }
    }
    return nullptr;
}

fake_source::frame * fake_source::at(const void * src, size_t bytes) {
    const uintptr_t p = (uintptr_t) src;
    for (frame & f : frames_) {
        const uintptr_t begin = (uintptr_t) f.bytes.data();
        if (p >= begin && p + bytes <= begin + f.bytes.size()) {
            return &f;
        }
    }
    return nullptr;
}

void fake_source::load(frame * f, uint32_t page) {
    f->page  = page;
    f->bytes.assign(case_.contents[page].begin(), case_.contents[page].end());
}

int fake_source::pin(uint32_t page, kvp_page * out) {
    std::unique_lock<std::mutex> lock(mutex_);
    if ((int) pins_++ == options_.fail_at) {
        return -EIO;
    }
    for (uint64_t turns = options_.slow ? rng_() % 30 : 0; turns > 0; turns--) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
    }
    frame * f = nullptr;
    changed_.wait(lock, [&] { return (f = find(page)) != nullptr || (f = unpinned()) != nullptr; });
    if (f->page != page) {
        load(f, page);
    }
    f->pins++;
    most_pinned_ = std::max(most_pinned_, ++pinned_now_);
    pinned_.insert(page);
    *out = kvp_page{f->bytes.data(), f->bytes.data() + case_.v_offset, 1};
    return 0;
}

void fake_source::unpin(uint32_t page) {
    std::lock_guard<std::mutex> lock(mutex_);
    frame * f = find(page);
    if (f == nullptr || f->pins == 0) {
        violations_.push_back("unpin of page " + std::to_string(page) + " that is not pinned");
        return;
    }
    pinned_now_--;
    if (--f->pins == 0 && !options_.keep) {
        std::fill(f->bytes.begin(), f->bytes.end(), 0xff);
        f->page = -1;
    }
    changed_.notify_all();
}

void fake_source::prefetch(const uint32_t * pages, uint32_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint32_t i = 0; i < n; i++) {
        prefetched_.insert(pages[i]);
        if (pinned_.count(pages[i]) != 0 && find(pages[i]) == nullptr) {
            violations_.push_back("page " + std::to_string(pages[i]) + " would be read twice");
        }
        frame * f = find(-1);
        // The last empty frame is left to pins.
        if (f != nullptr && f != &frames_.back() && find(pages[i]) == nullptr) {
            load(f, pages[i]);
        }
    }
}

bool fake_source::read(const void * src, size_t bytes, void * dst) {
    std::lock_guard<std::mutex> lock(mutex_);
    const frame * f = at(src, bytes);
    if (f == nullptr || f->pins == 0) {
        return false;
    }
    memcpy(dst, src, bytes);
    return true;
}

int64_t fake_source::page_at(const void * src) {
    std::lock_guard<std::mutex> lock(mutex_);
    const frame * f = at(src, 1);
    return f == nullptr || f->pins == 0 ? -1 : f->page;
}

uint32_t fake_source::pins_left() {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t n = 0;
    for (const frame & f : frames_) {
        n += f.pins;
    }
    return n;
}

std::vector<std::string> fake_source::violations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return violations_;
}

std::multiset<uint32_t> fake_source::pinned() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pinned_;
}

std::set<uint32_t> fake_source::prefetched() {
    std::lock_guard<std::mutex> lock(mutex_);
    return prefetched_;
}
