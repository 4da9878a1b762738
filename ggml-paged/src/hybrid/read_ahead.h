// The spilled pages to ask the source for next. Both lanes take pages from one list in the
// order of the plan, and may be at different places in it.
#pragma once

#include <mutex>
#include <vector>

#include "hybrid.h"

namespace kvp {

class read_ahead {
public:
    void begin(const page_source & source, std::vector<uint32_t> pages, uint32_t window) {
        std::lock_guard<std::mutex> lock(mutex_);
        source_ = &source;
        pages_  = std::move(pages);
        taken_.assign(pages_.size(), 0);
        first_  = 0;
        window_ = window;
        ask();
    }

    // take notes that a page has been pinned, and is called before the unpin. The window
    // is asked for again each time, as the source may have had no frame for it before;
    // pages already pinned once are left out, or they would be read twice.
    void take(uint32_t index) {
        std::lock_guard<std::mutex> lock(mutex_);
        taken_[index] = 1;
        ask();
    }

private:
    // Under the lock, so that no page is asked for after it was taken and unpinned; a
    // prefetch never waits.
    void ask() {
        while (first_ < pages_.size() && taken_[first_]) {
            first_++;
        }
        next_.clear();
        for (size_t i = first_; i < pages_.size() && next_.size() < window_; i++) {
            if (!taken_[i]) {
                next_.push_back(pages_[i]);
            }
        }
        if (!next_.empty() && source_->prefetch != nullptr) {
            source_->prefetch(source_->ctx, next_.data(), (uint32_t) next_.size());
        }
    }

    const page_source *   source_ = nullptr;
    std::mutex            mutex_;
    std::vector<uint32_t> pages_, next_;
    std::vector<uint8_t>  taken_;
    size_t                first_  = 0;
    uint32_t              window_ = 0;
};

// A cold step of a lane, with its place in the read-ahead list.
struct cold_step {
    const plan_step * step;
    uint32_t          read;  // if step->spilled
};

}  // namespace kvp
