// A stream does work in the order in which it was queued, in a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fakegpu {

// A Mark is a place in a stream. It is reached once, when all work before it is done.
class Mark {
public:
    void reach();
    void wait();

private:
    std::mutex              mutex_;
    std::condition_variable changed_;
    bool                    reached_ = false;
};

class Stream {
public:
    static std::shared_ptr<Stream> create();
    ~Stream();

    void push(std::function<void()> work);

    // wait returns when all work is done that was queued before the call.
    void wait();

    // busy reports whether work is queued or runs.
    bool busy();

    std::shared_ptr<Mark> mark();
    void wait_for(std::shared_ptr<Mark> mark);

private:
    Stream();
    void run();

    std::mutex                        mutex_;
    std::condition_variable           changed_;
    std::deque<std::function<void()>> queue_;
    uint64_t                          pushed_ = 0, done_ = 0;
    bool                              stop_ = false;
    std::thread                       thread_;
};

// wait_for_all_streams waits as cudaDeviceSynchronize does.
void wait_for_all_streams();
bool any_stream_busy();

}  // namespace fakegpu
