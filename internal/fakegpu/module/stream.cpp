#include "stream.h"

#include <vector>

namespace fakegpu {

namespace {

struct Streams {
    std::mutex                         mutex;
    std::vector<std::weak_ptr<Stream>> all;
};

// The list outlives the threads, which may still work while the process ends.
Streams & streams() {
    static auto * only = new Streams;
    return *only;
}

}  // namespace

void Mark::reach() {
    std::lock_guard<std::mutex> lock(mutex_);
    reached_ = true;
    changed_.notify_all();
}

void Mark::wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
}

Stream::Stream() : thread_([this] { run(); }) {}

std::shared_ptr<Stream> Stream::create() {
    std::shared_ptr<Stream> made(new Stream);
    std::lock_guard<std::mutex> lock(streams().mutex);
    auto & all = streams().all;
    for (size_t i = all.size(); i-- > 0;) {
        if (all[i].expired()) {
            all.erase(all.begin() + i);
        }
    }
    all.push_back(made);
    return made;
}

Stream::~Stream() {
    wait();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Stream::push(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    pushed_++;
    changed_.notify_all();
}

void Stream::wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t until = pushed_;
    changed_.wait(lock, [&] { return done_ >= until; });
}

std::shared_ptr<Mark> Stream::mark() {
    auto mark = std::make_shared<Mark>();
    push([mark] { mark->reach(); });
    return mark;
}

void Stream::wait_for(std::shared_ptr<Mark> mark) {
    push([mark] { mark->wait(); });
}

void Stream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        {
            const auto work = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            work();
        }
        lock.lock();
        done_++;
        changed_.notify_all();
    }
}

bool Stream::busy() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pushed_ != done_;
}

static std::vector<std::shared_ptr<Stream>> alive_streams() {
    std::vector<std::shared_ptr<Stream>> alive;
    std::lock_guard<std::mutex> lock(streams().mutex);
    for (const auto & one : streams().all) {
        if (auto stream = one.lock()) {
            alive.push_back(stream);
        }
    }
    return alive;
}

void wait_for_all_streams() {
    for (const auto & stream : alive_streams()) {
        stream->wait();
    }
}

bool any_stream_busy() {
    for (const auto & stream : alive_streams()) {
        if (stream->busy()) {
            return true;
        }
    }
    return false;
}

}  // namespace fakegpu
