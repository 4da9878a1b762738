// The lane of each page.
//
// Cold pages are given one after another to the lane that is expected to be done with them
// first. This rule is good for many pages of one size. For pages of different sizes the
// same is tried with the largest first, and all pages in one lane are tried as well. With
// few pages one page more or less in a lane matters: then single changes to each of these
// are tried while they help, and with very few pages every split. The best of all is the
// plan.
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "lane_clock.h"

namespace kvp {

namespace {

constexpr size_t few_pages      = 16;  // n^2 to n^3 steps
constexpr size_t very_few_pages = 6;   // 2^n n steps

double ns_per_byte(double rate) {
    return rate > 0 && std::isfinite(rate) ? 1e9 / rate : 0;
}

double cost_or_zero(double ns) {
    return ns > 0 && std::isfinite(ns) ? ns : 0;
}

lane_costs costs_of(const plan_input & in) {
    const double cpu = ns_per_byte(in.rates.cpu);
    lane_costs   c{};
    c.link       = ns_per_byte(in.rates.h2d);
    c.device     = ns_per_byte(in.rates.device);
    c.disk       = ns_per_byte(in.rates.disk);
    c.copy_ns    = cost_or_zero(in.rates.copy_ns);
    c.launch_ns  = cost_or_zero(in.rates.launch_ns);
    c.can_stream = c.link > 0 && c.device > 0 && in.slots > 0;
    c.can_cpu    = cpu > 0 && in.workers > 0;
    c.worker     = cpu * in.workers;
    c.slots      = (uint32_t) std::min<size_t>(in.slots, in.n);
    c.workers    = (uint32_t) std::min<size_t>(in.workers, in.n);
    c.merge_ns   = c.copy_ns + c.launch_ns + (double) in.rows * (2.0 + in.dv) * sizeof(float) * c.link;
    return c;
}

// Lanes of the cold steps, in the order of the plan.
using assignment = std::vector<lane>;

class planner {
public:
    planner(const lane_costs & costs, std::vector<plan_step> & steps)
        : costs_(costs), steps_(steps), clock_(costs) {
        while (hot_ < steps.size() && steps[hot_].where == lane::device_hot) {
            hot_bytes_ += steps[hot_++].bytes;
        }
    }

    size_t cold() const { return steps_.size() - hot_; }

    plan_times time(const assignment & lanes) {
        start();
        for (size_t i = 0; i < lanes.size(); i++) {
            put(steps_[hot_ + i], lanes[i]);
        }
        return clock_.times();
    }

    // The earliest lane for each page, taking pages in the order given.
    assignment earliest(const std::vector<uint32_t> & order) {
        assignment lanes(cold(), lane::stream);
        start();
        for (uint32_t i : order) {
            const plan_step & step  = steps_[hot_ + i];
            const double      ready = clock_.read(step);
            const bool        cpu   = costs_.can_cpu && (!costs_.can_stream ||
                clock_.cpu_end(step.bytes, ready) + costs_.merge_ns < clock_.stream_end(step.bytes, ready));
            lanes[i] = cpu ? lane::cpu : lane::stream;
            if (cpu) {
                clock_.cpu(step.bytes, ready);
            } else {
                clock_.stream(step.bytes, ready);
            }
        }
        return lanes;
    }

    // Cold pages by size, those in frames before spilled ones.
    std::vector<uint32_t> largest_first() const {
        std::vector<uint32_t> order = in_order();
        std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
            const plan_step & x = steps_[hot_ + a];
            const plan_step & y = steps_[hot_ + b];
            if (x.spilled != y.spilled) {
                return y.spilled;
            }
            return x.bytes != y.bytes ? x.bytes > y.bytes : a < b;
        });
        return order;
    }

    std::vector<uint32_t> in_order() const {
        std::vector<uint32_t> order(cold());
        for (size_t i = 0; i < order.size(); i++) {
            order[i] = (uint32_t) i;
        }
        return order;
    }

    // Whether pages differ in size or in the time at which they can be pinned.
    bool mixed() const {
        for (size_t i = hot_; i < steps_.size(); i++) {
            if (differ(i, hot_)) {
                return true;
            }
        }
        return false;
    }

    void keep(const assignment & lanes) {
        const double total = time(lanes).total;
        if (best_.empty() || total < best_total_) {
            best_       = lanes;
            best_total_ = total;
        }
    }

    void keep_best_split() {
        assignment lanes(cold());
        for (uint32_t bits = 0; bits < 1u << lanes.size(); bits++) {
            for (size_t i = 0; i < lanes.size(); i++) {
                lanes[i] = bits >> i & 1 ? lane::cpu : lane::stream;
            }
            keep(lanes);
        }
    }

    // Moves of single pages, and swaps of pages that differ, while they help.
    void keep_improved(assignment lanes) {
        double total = time(lanes).total;
        auto   better = [&](const assignment & next) {
            const double t = time(next).total;
            if (t >= total * (1 - 1e-9)) {
                return false;
            }
            lanes = next;
            total = t;
            return true;
        };
        for (bool again = true; again;) {
            again = false;
            for (size_t i = 0; i < lanes.size(); i++) {
                assignment next = lanes;
                next[i] = next[i] == lane::cpu ? lane::stream : lane::cpu;
                again = better(next) || again;
                for (size_t j = i + 1; j < lanes.size(); j++) {
                    if (lanes[j] != lanes[i] && differ(hot_ + i, hot_ + j)) {
                        next = lanes;
                        std::swap(next[i], next[j]);
                        again = better(next) || again;
                    }
                }
            }
        }
        keep(lanes);
    }

    void choose() {
        std::vector<assignment> tries = {earliest(in_order())};
        if (costs_.can_stream && costs_.can_cpu) {
            if (cold() <= very_few_pages) {
                return keep_best_split();
            }
            tries.push_back(assignment(cold(), lane::stream));
            tries.push_back(assignment(cold(), lane::cpu));
            if (mixed()) {
                tries.push_back(earliest(largest_first()));
            }
            if (cold() <= few_pages) {
                for (const assignment & lanes : tries) {
                    keep_improved(lanes);
                }
                return;
            }
        }
        for (const assignment & lanes : tries) {
            keep(lanes);
        }
    }

    plan_times finish() {
        for (size_t i = 0; i < best_.size(); i++) {
            steps_[hot_ + i].where = best_[i];
        }
        return time(best_);
    }

private:
    bool differ(size_t a, size_t b) const {
        return steps_[a].bytes != steps_[b].bytes || steps_[a].spilled != steps_[b].spilled;
    }

    void start() {
        clock_.reset();
        if (hot_ > 0) {
            clock_.launch();
            clock_.hot(hot_bytes_);
        }
    }

    void put(const plan_step & step, lane where) {
        const double ready = clock_.read(step);
        if (where == lane::cpu) {
            clock_.cpu(step.bytes, ready);
        } else {
            clock_.stream(step.bytes, ready);
        }
    }

    lane_costs               costs_;
    std::vector<plan_step> & steps_;
    lane_clock               clock_;
    size_t                   hot_       = 0;
    uint64_t                 hot_bytes_ = 0;
    assignment               best_;
    double                   best_total_ = 0;
};

int list_steps(const plan_input & in, hybrid_plan * out) {
    for (size_t i = 1; i < in.n; i++) {
        if (in.pages[i].ref.page <= in.pages[i - 1].ref.page) {
            char text[128];
            snprintf(text, sizeof text, "planning attention: page %u comes after page %u; pages must be ascending, each once",
                     in.pages[i].ref.page, in.pages[i - 1].ref.page);
            out->error = text;
            return -EINVAL;
        }
    }
    for (residency where : {residency::device_hot, residency::host_frame, residency::spilled}) {
        for (size_t i = 0; i < in.n; i++) {
            const plan_page & p = in.pages[i];
            if (p.where == where && p.ref.cls != KVP_EMPTY) {
                const lane first = where == residency::device_hot ? lane::device_hot : lane::stream;
                out->steps.push_back(plan_step{p.ref, p.bytes, first, where == residency::spilled});
            }
        }
    }
    return 0;
}

}  // namespace

int hybrid_plan_make(const plan_input & in, hybrid_plan * out) {
    out->steps.clear();
    out->error.clear();
    out->times = plan_times{};
    if (int err = list_steps(in, out)) {
        return err;
    }
    const lane_costs costs = costs_of(in);
    planner          plan(costs, out->steps);
    const size_t     cold = plan.cold();
    if (cold > 0 && !costs.can_stream && !costs.can_cpu) {
        out->steps.clear();
        out->error = "planning attention: there are " + std::to_string(cold) +
            " pages outside device memory, but neither staging slots with known link and device rates nor CPU workers";
        return -EINVAL;
    }
    if (cold > 0) {
        plan.choose();
    }
    out->times = plan.finish();
    return 0;
}

}  // namespace kvp
