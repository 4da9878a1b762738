// The planner's model of time: when lanes finish pages that they get one after another.
//
// The link copies one page at a time, into a slot that the device has read; the device
// attends in the order of the copies, hot pages first; a CPU worker attends one page at a
// time; the disk reads spilled pages in the order of the plan, without a pause.
#pragma once

#include <algorithm>
#include <vector>

#include "hybrid.h"

namespace kvp {

// ns per byte, and the fixed costs; lanes that are not available are marked.
struct lane_costs {
    double   link, device, disk;
    double   worker;  // of one CPU worker
    double   copy_ns, launch_ns, merge_ns;
    bool     can_stream, can_cpu;
    uint32_t slots, workers;
};

class lane_clock {
public:
    explicit lane_clock(const lane_costs & costs)
        : c_(costs), slot_free_(costs.can_stream ? costs.slots : 0, 0.0), idle_(costs.can_cpu ? costs.workers : 0, 0.0) {}

    void reset() {
        std::fill(slot_free_.begin(), slot_free_.end(), 0.0);
        std::fill(idle_.begin(), idle_.end(), 0.0);
        times_ = plan_times{};
        next_  = 0;
    }

    void hot(uint64_t bytes) { times_.device += (double) bytes * c_.device; }
    void launch() { times_.device += c_.launch_ns; }

    // read is when a page can be pinned.
    double read(const plan_step & step) {
        if (!step.spilled) {
            return 0;
        }
        times_.disk += (double) step.bytes * c_.disk;
        return times_.disk;
    }

    double stream_end(uint64_t bytes, double ready) const {
        return std::max(copy_end(bytes, ready), times_.device) + attend_ns(bytes);
    }

    double cpu_end(uint64_t bytes, double ready) const {
        return std::max(idle_.front(), ready) + (double) bytes * c_.worker;
    }

    void stream(uint64_t bytes, double ready) {
        const double end  = stream_end(bytes, ready);
        times_.link       = copy_end(bytes, ready);
        times_.device     = end;
        slot_free_[next_] = end;
        next_             = next_ + 1 < slot_free_.size() ? next_ + 1 : 0;
    }

    void cpu(uint64_t bytes, double ready) {
        const double end = cpu_end(bytes, ready);
        std::pop_heap(idle_.begin(), idle_.end(), std::greater<double>());
        idle_.back() = end;
        std::push_heap(idle_.begin(), idle_.end(), std::greater<double>());
        times_.cpu = std::max(times_.cpu, end);
    }

    // The host's partial goes to the device when both lanes are done.
    plan_times times() const {
        plan_times t = times_;
        t.total      = std::max(std::max(t.link, t.disk), std::max(t.device, t.cpu));
        if (t.cpu > 0) {
            t.total += c_.merge_ns;
        }
        return t;
    }

private:
    double copy_end(uint64_t bytes, double ready) const {
        return std::max(std::max(times_.link, ready), slot_free_[next_]) + c_.copy_ns + (double) bytes * c_.link;
    }
    double attend_ns(uint64_t bytes) const { return c_.launch_ns + (double) bytes * c_.device; }

    lane_costs          c_;
    std::vector<double> slot_free_;
    std::vector<double> idle_;  // a heap: the worker that is free first is in front
    plan_times          times_{};
    size_t              next_ = 0;
};

}  // namespace kvp
