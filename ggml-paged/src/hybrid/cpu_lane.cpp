#include "cpu_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace kvp {

namespace {

uint64_t now_ns() {
    return (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void cpu_lane::start() {
    for (uint32_t w = 0; w < workers_; w++) {
        threads_.emplace_back([this, w] { work(w); });
    }
}

cpu_lane::~cpu_lane() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        quit_ = true;
    }
    changed_.notify_all();
    for (std::thread & t : threads_) {
        t.join();
    }
}

kvp_partial cpu_lane::ring(size_t index) {
    const uint32_t rows = job_.total.rows, dv = job_.total.dv;
    return partial_at(ring_.data() + (index % ring_size_) * partial_floats(rows, dv), rows, dv);
}

void cpu_lane::reserve(size_t steps, uint32_t rows, uint32_t dv) {
    ring_size_ = std::min<size_t>(workers_ + 1, steps);
    const size_t floats = ring_size_ * partial_floats(rows, dv);
    if (ring_.size() < floats) {
        ring_.resize(floats);
    }
    done_.assign(ring_size_, 0);
}

void cpu_lane::begin(job j) {
    std::lock_guard<std::mutex> lock(mutex_);
    job_  = std::move(j);
    next_ = folded_ = 0;
    bytes_ = busy_ns_ = pin_ns_ = 0;
    if (!job_.steps.empty()) {
        active_ = workers_;
        run_no_++;
        changed_.notify_all();
    }
}

cpu_lane::result cpu_lane::finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return active_ == 0; });
    return result{{bytes_, busy_ns_ / std::max(1u, workers_)}, pin_ns_};
}

void cpu_lane::work(uint32_t worker) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t seen = 0;;) {
        changed_.wait(lock, [&] { return quit_ || run_no_ != seen; });
        if (quit_) {
            return;
        }
        seen = run_no_;
        attend_pages(worker, lock);
        active_--;
        changed_.notify_all();
    }
}

void cpu_lane::attend_pages(uint32_t worker, std::unique_lock<std::mutex> & lock) {
    uint64_t pin_ns = 0;
    for (;;) {
        changed_.wait(lock, [&] {
            return job_.run->stopped() || next_ == job_.steps.size() || next_ < folded_ + ring_size_;
        });
        if (job_.run->stopped() || next_ == job_.steps.size()) {
            break;
        }
        const size_t index = next_++;
        lock.unlock();
        uint64_t   busy_ns = 0;
        const bool good    = attend_page(worker, index, &pin_ns, &busy_ns);
        lock.lock();
        if (!good) {
            changed_.notify_all();
            break;
        }
        bytes_ += job_.steps[index].step->bytes;
        busy_ns_ += busy_ns;
        done_[index % ring_size_] = 1;
        fold(lock);
    }
    pin_ns_ = std::max(pin_ns_, pin_ns);
}

bool cpu_lane::attend_page(uint32_t worker, size_t index, uint64_t * pin_ns, uint64_t * busy_ns) {
    const cold_step    cold = job_.steps[index];
    const kvp_page_ref ref  = cold.step->ref;
    kvp_page           page{};
    const uint64_t     asked = now_ns();
    if (int err = job_.source->pin(job_.source->ctx, ref.page, &page)) {
        job_.run->fail(err, "reading page " + std::to_string(ref.page) + " to attend it on the CPU: " + strerror(-err));
        return false;
    }
    const uint64_t pinned = now_ns();
    if (cold.step->spilled) {
        *pin_ns += pinned - asked;
        job_.ahead->take(cold.read);
    }
    const kvp_partial out = ring(index);
    const int err = job_.attend->attend(job_.attend->ctx, worker, &ref, &page, &out);
    job_.source->unpin(job_.source->ctx, ref.page);
    *busy_ns = now_ns() - pinned;
    if (err != 0) {
        job_.run->fail(err, "attending page " + std::to_string(ref.page) + " on the CPU: " + strerror(-err));
        return false;
    }
    return true;
}

// One worker folds at a time, without the lock; the others leave their partials to it.
void cpu_lane::fold(std::unique_lock<std::mutex> & lock) {
    while (!folding_ && folded_ < job_.steps.size() && done_[folded_ % ring_size_]) {
        const kvp_partial from = ring(folded_);
        folding_ = true;
        lock.unlock();
        partial_merge(job_.total, from);
        lock.lock();
        folding_ = false;
        done_[folded_ % ring_size_] = 0;
        folded_++;
        changed_.notify_all();
    }
}

}  // namespace kvp
