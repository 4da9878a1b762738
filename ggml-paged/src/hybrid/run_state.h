// The first error of a run, and the wish to stop that comes with it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace kvp {

class run_state {
public:
    // fail keeps the first error; later ones are consequences.
    void fail(int error, std::string sentence) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (error_ == 0) {
            error_    = error;
            sentence_ = std::move(sentence);
            stopped_.store(true, std::memory_order_release);
        }
    }
    bool stopped() const { return stopped_.load(std::memory_order_acquire); }

    // For after the run, when no thread calls fail any more.
    int                 error() const { return error_; }
    const std::string & sentence() const { return sentence_; }

private:
    std::mutex        mutex_;
    std::atomic<bool> stopped_{false};
    int               error_ = 0;
    std::string       sentence_;
};

}  // namespace kvp
