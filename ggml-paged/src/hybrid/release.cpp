#include "release.h"

#include <cstring>

namespace kvp {

void releaser::start() {
    thread_ = std::thread([this] { work(); });
}

releaser::~releaser() {
    if (thread_.joinable()) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            quit_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
}

void releaser::begin(const kvp_device & device, const page_source & source, run_state & run) {
    std::lock_guard<std::mutex> lock(mutex_);
    device_ = &device;
    source_ = &source;
    run_    = &run;
    added_ = released_ = 0;
    sample_ = lane_sample{};
}

void releaser::add(uint32_t slot, uint32_t page, uint64_t bytes) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        copies_.push_back(copy{slot, page, bytes});
        added_++;
    }
    changed_.notify_all();
}

void releaser::wait_released(uint64_t pages) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return released_ >= pages; });
}

lane_sample releaser::finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return released_ == added_; });
    return sample_;
}

void releaser::release(const copy & c, lane_sample * sample) {
    const int err = device_->event_sync(device_->ctx, KVP_EVENT_COPIED(c.slot));
    uint64_t  ns  = 0;
    if (err != 0) {
        const char * why = device_->last_error(device_->ctx);
        run_->fail(err, "copying page " + std::to_string(c.page) + " to the device: " + (why != nullptr ? why : strerror(-err)));
        // The state of the copy is unknown, and the copy must not read a frame after the
        // frame has got another page.
        device_->drain(device_->ctx);
    } else if (device_->elapsed != nullptr &&
               device_->elapsed(device_->ctx, KVP_EVENT_COPY_BEGIN(c.slot), KVP_EVENT_COPIED(c.slot), &ns) == 0) {
        sample->bytes = c.bytes;
        sample->ns    = ns;
    }
    source_->unpin(source_->ctx, c.page);
}

void releaser::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return quit_ || !copies_.empty(); });
        if (copies_.empty()) {
            return;
        }
        const copy c = copies_.front();
        copies_.pop_front();
        lock.unlock();
        lane_sample sample{};
        release(c, &sample);
        lock.lock();
        sample_.bytes += sample.bytes;
        sample_.ns += sample.ns;
        released_++;
        changed_.notify_all();
    }
}

}  // namespace kvp
