// Unpins pages of the stream lane as soon as their copies are done, on a separate thread:
// the streaming thread may be waiting for a frame that only this thread frees.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "hybrid.h"
#include "run_state.h"

namespace kvp {

class releaser {
public:
    releaser() = default;
    ~releaser();
    void start();  // throws std::system_error where there is no thread

    void begin(const kvp_device & device, const page_source & source, run_state & run);
    // add hands over a pinned page whose copy and COPIED event are enqueued.
    void add(uint32_t slot, uint32_t page, uint64_t bytes);
    // wait_released waits until that many pages of this run are unpinned.
    void wait_released(uint64_t pages);
    // finish waits for all pages, and returns the speed of their copies.
    lane_sample finish();

private:
    struct copy {
        uint32_t slot, page;
        uint64_t bytes;
    };
    void work();
    void release(const copy & c, lane_sample * sample);

    std::thread             thread_;
    std::mutex              mutex_;
    std::condition_variable changed_;
    std::deque<copy>        copies_;
    uint64_t                added_ = 0, released_ = 0;
    bool                    quit_  = false;
    lane_sample             sample_{};
    const kvp_device *      device_ = nullptr;
    const page_source *     source_ = nullptr;
    run_state *             run_    = nullptr;
};

}  // namespace kvp
