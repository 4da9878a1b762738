// One run of a plan: hot pages and the stream lane in the order of the plan, on the calling
// thread, beside the CPU lane's workers; then the host's partial, and the end.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu_lane.h"
#include "release.h"

namespace kvp {

namespace {

uint64_t now_ns() {
    return (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The block that merge_host copies, kept from run to run.
class host_block {
public:
    explicit host_block(const host_memory & memory) : memory_(memory) {}
    ~host_block() { give_back(); }

    float * get(size_t bytes) {
        if (bytes > bytes_) {
            give_back();
            block_ = memory_.alloc != nullptr ? memory_.alloc(memory_.user, bytes) : malloc(bytes);
            bytes_ = block_ != nullptr ? bytes : 0;
        }
        return static_cast<float *>(block_);
    }

private:
    void give_back() {
        if (block_ != nullptr && memory_.alloc != nullptr) {
            memory_.free(memory_.user, block_);
        } else {
            free(block_);
        }
        block_ = nullptr;
        bytes_ = 0;
    }
    host_memory memory_;
    void *      block_ = nullptr;
    size_t      bytes_ = 0;
};

// The steps of a plan by lane.
struct lanes {
    std::vector<kvp_page_ref> hot;
    std::vector<cold_step>    stream, cpu;
    std::vector<size_t>       hot_before;  // per page of stream: hot pages that the plan has before it
    std::vector<uint32_t>     spilled;
    uint64_t                  spilled_bytes = 0;

    explicit lanes(const hybrid_plan & plan) {
        for (const plan_step & s : plan.steps) {
            if (s.where == lane::device_hot) {
                hot.push_back(s.ref);
                continue;
            }
            if (s.where == lane::stream) {
                hot_before.push_back(hot.size());
            }
            (s.where == lane::stream ? stream : cpu).push_back(cold_step{&s, (uint32_t) spilled.size()});
            if (s.spilled) {
                spilled.push_back(s.ref.page);
                spilled_bytes += s.bytes;
            }
        }
    }
    bool cold() const { return !stream.empty() || !cpu.empty(); }
};

class hybrid_run {
public:
    hybrid_run(const hybrid_op & op, const lanes & l, const kvp_device & device, const page_source & source,
               const cpu_attend * attend, releaser & release, cpu_lane & cpu, const kvp_partial & total, run_state & state)
        : op_(op), lanes_(l), device_(device), source_(source), attend_(attend), release_(release), cpu_(cpu),
          total_(total), state_(state), slots_((uint32_t) std::min<size_t>(op.slots, l.stream.size())) {}

    void go(hybrid_measured * measured);

private:
    bool check(int err, const char * what) {
        if (err != 0) {
            const char * why = device_.last_error(device_.ctx);
            state_.fail(err, std::string(what) + ": " + (why != nullptr ? why : strerror(-err)));
        }
        return err == 0;
    }
    bool enqueue_hot(size_t end);
    bool enqueue_copy(size_t i, const kvp_page & page);
    bool enqueue_attend(size_t i);
    bool stream_page(size_t i);
    void stream_pages();
    bool enqueue_end();
    lane_sample device_sample() const;

    const hybrid_op &   op_;
    const lanes &       lanes_;
    const kvp_device &  device_;
    const page_source & source_;
    const cpu_attend *  attend_;
    releaser &          release_;
    cpu_lane &          cpu_;
    const kvp_partial & total_;
    run_state &         state_;
    const uint32_t      slots_;
    size_t              hot_done_ = 0;
    uint64_t            pin_ns_ = 0;
    read_ahead          ahead_;
};

// Hot pages before `end`, as far as they were not enqueued yet.
bool hybrid_run::enqueue_hot(size_t end) {
    const size_t first = hot_done_;
    hot_done_ = std::max(first, end);
    return first >= end ||
        check(device_.attend_hot(device_.ctx, lanes_.hot.data() + first, (uint32_t) (end - first)), "attending pages in device memory");
}

bool hybrid_run::enqueue_copy(size_t i, const kvp_page & page) {
    const uint32_t slot  = (uint32_t) (i % slots_);
    const uint32_t cells = lanes_.stream[i].step->ref.cells;
    void *         ctx   = device_.ctx;
    // The slot's last page was launched, but its kernels may still be reading: the copy
    // stream waits for them, not this thread.
    if (i >= slots_ && !check(device_.event_wait(ctx, KVP_STREAM_COPY, KVP_EVENT_READ(slot)), "waiting for a staging slot")) {
        return false;
    }
    if (!check(device_.event_record(ctx, KVP_STREAM_COPY, KVP_EVENT_COPY_BEGIN(slot)), "recording the start of a copy")) {
        return false;
    }
    const size_t k = cells * op_.row_k, v = cells * op_.row_v;
    int err = 0;
    if (cells == op_.page_cells && page.v == page.k + op_.v_offset) {
        err = device_.h2d(ctx, KVP_STREAM_COPY, slot, 0, page.k, op_.v_offset + v);
    } else {
        err = device_.h2d(ctx, KVP_STREAM_COPY, slot, 0, page.k, k);
        if (err == 0) {
            err = device_.h2d(ctx, KVP_STREAM_COPY, slot, op_.v_offset, page.v, v);
        }
    }
    return check(err, "copying a page to a staging slot") &&
        check(device_.event_record(ctx, KVP_STREAM_COPY, KVP_EVENT_COPIED(slot)), "recording the end of a copy");
}

bool hybrid_run::enqueue_attend(size_t i) {
    const uint32_t       slot = (uint32_t) (i % slots_);
    const kvp_page_ref & ref  = lanes_.stream[i].step->ref;
    void *               ctx  = device_.ctx;
    return check(device_.event_wait(ctx, KVP_STREAM_COMPUTE, KVP_EVENT_COPIED(slot)), "waiting for a copy") &&
        check(device_.event_record(ctx, KVP_STREAM_COMPUTE, KVP_EVENT_ATTEND_BEGIN(slot)), "recording the start of a page") &&
        check(device_.attend_slot(ctx, slot, &ref), "attending a streamed page") &&
        check(device_.event_record(ctx, KVP_STREAM_COMPUTE, KVP_EVENT_READ(slot)), "recording the end of a page");
}

bool hybrid_run::stream_page(size_t i) {
    const plan_step & step = *lanes_.stream[i].step;
    // Before this thread waits for anything, so that the device has work meanwhile.
    if (!state_.stopped() && !enqueue_hot(lanes_.hot_before[i])) {
        return false;
    }
    if (i >= slots_) {
        // At most one pinned page per slot, and events are recorded again only when no
        // thread waits for the earlier record.
        release_.wait_released(i - slots_ + 1);
    }
    if (state_.stopped()) {
        return false;
    }
    kvp_page       page{};
    const uint64_t asked = now_ns();
    if (int err = source_.pin(source_.ctx, step.ref.page, &page)) {
        state_.fail(err, "reading page " + std::to_string(step.ref.page) + " to stream it to the device: " + strerror(-err));
        return false;
    }
    if (step.spilled) {
        pin_ns_ += now_ns() - asked;
        ahead_.take(lanes_.stream[i].read);
    }
    if (!enqueue_copy(i, page)) {
        // No event shows the end of the copy, if the copy was enqueued.
        device_.drain(device_.ctx);
        source_.unpin(source_.ctx, step.ref.page);
        return false;
    }
    release_.add((uint32_t) (i % slots_), step.ref.page, step.bytes);
    return enqueue_attend(i);
}

void hybrid_run::stream_pages() {
    for (size_t i = 0; i < lanes_.stream.size(); i++) {
        if (!stream_page(i)) {
            return;
        }
    }
    if (!state_.stopped()) {
        enqueue_hot(lanes_.hot.size());
    }
}

bool hybrid_run::enqueue_end() {
    void *         ctx = device_.ctx;
    const uint32_t end = KVP_EVENT_END(slots_);
    if (!lanes_.cpu.empty() && !check(device_.merge_host(ctx, &total_), "merging what the CPU attended")) {
        return false;
    }
    return check(device_.finish(ctx), "finishing attention on the device") &&
        check(device_.event_record(ctx, KVP_STREAM_COMPUTE, end), "recording the end") &&
        (!lanes_.cold() || check(device_.event_sync(ctx, end), "waiting for the device"));
}

// Only the last page of each slot has its times: later records have replaced the events of
// earlier pages.
lane_sample hybrid_run::device_sample() const {
    lane_sample s{};
    for (uint32_t slot = 0; slot < slots_ && device_.elapsed != nullptr; slot++) {
        const size_t n    = lanes_.stream.size();
        const size_t last = slot + (n - 1 - slot) / slots_ * slots_;
        uint64_t     ns   = 0;
        if (device_.elapsed(device_.ctx, KVP_EVENT_ATTEND_BEGIN(slot), KVP_EVENT_READ(slot), &ns) == 0) {
            s.bytes += lanes_.stream[last].step->bytes;
            s.ns += ns;
        }
    }
    return s;
}

void hybrid_run::go(hybrid_measured * measured) {
    hybrid_measured m{};
    const uint64_t  begin = now_ns();
    if (!check(device_.begin(device_.ctx, slots_, op_.page_bytes, KVP_EVENTS(slots_)), "preparing the device")) {
        return;
    }
    release_.begin(device_, source_, state_);
    ahead_.begin(source_, lanes_.spilled, std::max(2u, slots_ + cpu_.workers()));
    cpu_.begin(cpu_lane::job{lanes_.cpu, &source_, attend_, &ahead_, &state_, total_});
    stream_pages();
    const cpu_lane::result cpu = cpu_.finish();
    const uint64_t         all_pinned = now_ns();
    if (!state_.stopped() && enqueue_end() && lanes_.cold()) {
        m.device = device_sample();
    }
    if (state_.stopped()) {
        device_.drain(device_.ctx);
    }
    m.link = release_.finish();
    device_.end(device_.ctx);

    m.cpu = cpu.attend;
    // Pages wait for the disk only if the disk is the slowest lane; only then the time of
    // the run measures the disk.
    if (std::max(pin_ns_, cpu.pin_ns) > (all_pinned - begin) / 2) {
        m.disk = lane_sample{lanes_.spilled_bytes, all_pinned - begin};
    }
    if (measured != nullptr) {
        *measured = m;
    }
}

// NULL, or the reason why a plan cannot be run.
const char * refuse(const hybrid_op & op, const hybrid_plan & plan, const lanes & l, const cpu_attend * cpu, uint32_t workers) {
    if (!l.stream.empty() && op.slots == 0) {
        return "the plan streams pages, but the op has no staging slots";
    }
    if (!l.cpu.empty() && (workers == 0 || cpu == nullptr)) {
        return "the plan has pages for the CPU, but there are no workers for it";
    }
    if (op.page_bytes < op.v_offset) {
        return "V of a page begins after its end";
    }
    for (const plan_step & s : plan.steps) {
        if (s.ref.cells > op.page_cells || (op.row_k > 0 && s.ref.cells > op.v_offset / op.row_k) ||
            (op.row_v > 0 && s.ref.cells > (op.page_bytes - op.v_offset) / op.row_v)) {
            return "the plan has a page with more cells than a page can hold";
        }
    }
    return nullptr;
}

}  // namespace

struct hybrid_executor::impl {
    impl(uint32_t workers, const host_memory & memory) : cpu(workers), block(memory) {}

    // The memory of the host's partials; total stays empty if no memory is needed.
    int reserve(const hybrid_op & op, const lanes & l, kvp_partial * total) {
        if (l.cpu.empty()) {
            return 0;
        }
        float * floats = block.get(partial_floats(op.rows, op.dv) * sizeof(float));
        try {
            cpu.reserve(l.cpu.size(), op.rows, op.dv);
        } catch (const std::bad_alloc &) {
            floats = nullptr;
        }
        if (floats == nullptr) {
            error = "running attention: no host memory for partial results of " + std::to_string(op.rows) +
                " rows; a smaller batch needs less";
            return -ENOMEM;
        }
        *total = partial_at(floats, op.rows, op.dv);
        partial_clear(*total);
        return 0;
    }

    int run(const hybrid_op & op, const hybrid_plan & plan, const kvp_device & device, const page_source & source,
            const cpu_attend * attend, hybrid_measured * measured) {
        error.clear();
        const lanes l(plan);
        if (const char * why = refuse(op, plan, l, attend, cpu.workers())) {
            error = std::string("running attention: ") + why;
            return -EINVAL;
        }
        kvp_partial total{};
        if (int err = reserve(op, l, &total)) {
            return err;
        }
        run_state state;
        hybrid_run(op, l, device, source, attend, release, cpu, total, state).go(measured);
        error = state.sentence();
        return state.error();
    }

    releaser    release;
    cpu_lane    cpu;
    host_block  block;
    std::string error;
};

hybrid_executor::hybrid_executor(std::unique_ptr<impl> impl) : impl_(std::move(impl)) {}
hybrid_executor::~hybrid_executor() = default;

std::unique_ptr<hybrid_executor> hybrid_executor::make(uint32_t workers, const host_memory & memory) {
    try {
        std::unique_ptr<impl> i(new impl(workers, memory));
        i->release.start();
        i->cpu.start();
        return std::unique_ptr<hybrid_executor>(new hybrid_executor(std::move(i)));
    } catch (const std::exception &) {
        return nullptr;
    }
}

int hybrid_executor::run(const hybrid_op & op, const hybrid_plan & plan, const kvp_device & device,
                         const page_source & source, const cpu_attend * cpu, hybrid_measured * measured) {
    if (measured != nullptr) {
        *measured = hybrid_measured{};
    }
    return impl_->run(op, plan, device, source, cpu, measured);
}

const char * hybrid_executor::error() const { return impl_->error.c_str(); }
uint32_t     hybrid_executor::workers() const { return impl_->cpu.workers(); }

}  // namespace kvp
