// CPU workers that attend pages in place.
//
// Workers take pages in the order of the plan, and their partials are folded in that
// order: a ring has one more partial than there are workers, so that a worker which is
// done early can go on, and a page is only taken when the ring has room for it. Memory is
// bounded, and the result does not depend on the workers' speed.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "read_ahead.h"
#include "run_state.h"

namespace kvp {

class cpu_lane {
public:
    explicit cpu_lane(uint32_t workers) : workers_(workers) {}
    ~cpu_lane();
    void     start();  // throws std::system_error where there are no threads
    uint32_t workers() const { return workers_; }

    struct job {
        std::vector<cold_step> steps;
        const page_source *    source;
        const cpu_attend *     attend;
        read_ahead *           ahead;
        run_state *            run;
        kvp_partial            total;  // folded into; cleared before
    };

    // reserve makes the memory for begin; throws std::bad_alloc.
    void reserve(size_t steps, uint32_t rows, uint32_t dv);
    // begin lets the workers go, after reserve with the same sizes.
    void begin(job j);
    // finish waits until all workers are idle. total is complete if the run has no error.
    struct result {
        lane_sample attend;  // as if by all workers together
        uint64_t    pin_ns;  // the longest that one worker waited for spilled pages
    };
    result finish();

private:
    void work(uint32_t worker);
    void attend_pages(uint32_t worker, std::unique_lock<std::mutex> & lock);
    bool attend_page(uint32_t worker, size_t index, uint64_t * pin_ns, uint64_t * busy_ns);
    void fold(std::unique_lock<std::mutex> & lock);

    kvp_partial ring(size_t index);

    const uint32_t           workers_;
    std::vector<std::thread> threads_;
    std::mutex               mutex_;
    std::condition_variable  changed_;
    bool                     quit_   = false;
    uint64_t                 run_no_ = 0;  // workers start when it grows
    uint32_t                 active_ = 0;

    job                  job_{};
    size_t               ring_size_ = 0;
    std::vector<float>   ring_;
    std::vector<uint8_t> done_;      // by place in the ring
    size_t               next_   = 0;  // to be taken
    size_t               folded_ = 0;
    bool                 folding_ = false;
    uint64_t             bytes_ = 0, busy_ns_ = 0, pin_ns_ = 0;
};

}  // namespace kvp
