// The threads that compute one op together, and their shared data.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "cpu/plan.h"
#include "select/choose.h"

namespace kvp {

// A run is one forward pass of one op. The first thread makes the run, and the run lives
// until the last thread has left.
struct run {
    kvp_pager *                       pager = nullptr;
    std::shared_ptr<const batch_data> data;
    attention_plan                    plan{};
    kvp_scan *                        scan = nullptr;
    bool                              refused = false;  // decided before any thread begins
    std::atomic<uint32_t>             next_span{0};
    std::unique_ptr<choice>           choosing;         // see cpu/chosen.cpp
    std::vector<float>                scratch;          // the plan's bytes, for a query that chooses
    std::vector<const position_block *> unbounded;      // blocks whose bounds are to be computed
    std::atomic<uint32_t>             next_unbounded{0};
    uint32_t                          entered = 0;  // guarded by the registry's mutex

    // fail keeps the first error and makes it the pager's, too, so that threads that wait
    // for pages wake up.
    void fail(int error, const char * message);

    // error is 0 or the first failure; sentence is its text.
    int error() const { return first_error.load(std::memory_order_acquire); }
    int say_error();

    // arrive_and_wait waits until all threads have arrived. The last thread calls `then`
    // before the others go on. Waiting threads spin for a moment and then sleep.
    template <typename F> void arrive_and_wait(F then) {
        const uint32_t turn = turns.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == plan.n_threads) {
            then();
            arrived.store(0, std::memory_order_relaxed);
            next_turn(turn);
        } else {
            wait_turn(turn);
        }
    }

private:
    void next_turn(uint32_t turn);
    void wait_turn(uint32_t turn);

    std::atomic<uint32_t>   arrived{0};
    std::atomic<uint32_t>   turns{0};
    std::mutex              mutex;
    std::condition_variable turned;
    std::atomic<int>        first_error{0};
    std::string             sentence;  // guarded by mutex
};

// refuse_batch returns 0, or an error and its sentence if no op of the batch can be
// computed. The caller holds the registry's mutex.
int refuse_batch(const kvp_batch & batch, const char ** why);

// enter_run gives all threads of a forward pass the same run. An op that cannot be
// computed gives a failed run.
std::shared_ptr<run> enter_run(kvp_op & op, uint32_t n_threads);

} // namespace kvp
