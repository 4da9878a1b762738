// Hybrid attention: hot pages are attended where they lie in device memory, cold pages are
// either streamed to the device through staging slots or attended in place by CPU workers,
// whichever is expected to finish first, and the partial results are merged by log-sum-exp.
//
//   plan.cpp      which page goes where: a pure function of pages and rates
//   rates.cpp     the measured rates of the lanes, steady enough to plan with
//   merge.cpp     partial results on the host
//   executor.cpp  one run: hot pages, the stream lane, the end
//   release.cpp   unpins pages whose copies are done
//   cpu_lane.cpp  workers that attend pages in place
//   read_ahead.h  which spilled pages to ask for next
//   source.cpp    the pager as the source of pages
//
// How a backend uses it (once per op, on its own thread):
//
//   hybrid_executor is made once per backend context and kept: it owns its threads and the
//   host memory of partials.
//   1. list the pages that are not EMPTY, ascending, with cells, bytes and residency;
//   2. hybrid_plan_make with lane_meters::rates();
//   3. hybrid_executor::run; 4. lane_meters::update with the measurements of run.
//
// Ownership
//
// Everything passed to run is borrowed until it returns, and it does not return before
// every pin is given back, every worker is idle, and nothing reads host memory. With a cold
// page in the plan, out is complete when run returns; with hot pages alone it returns when
// everything is enqueued on the compute stream.
//
// Reproducibility
//
// Every lane goes through its pages in the order of the plan, the device folds in the order
// of the calls, and host partials are folded in the order of the plan however workers
// finish. So the same plan gives the same bits; another plan may differ by rounding, as the
// CPU and the device add in different orders. Without pages for the CPU it is the order of
// the steps alone that counts, hot pages and streamed ones alike.
//
// Nothing here calls the rest of the library: it is linked into backends that reach the
// pager only through its table (kvp_iface).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

namespace kvp {

// --- plan --------------------------------------------------------------------------------

enum class residency : uint8_t {
    device_hot,  // in device memory
    host_frame,  // in a frame of the pager
    spilled,     // must be read first
};

enum class lane : uint8_t { device_hot, stream, cpu };

struct plan_page {
    kvp_page_ref ref;
    residency    where;
    uint64_t     bytes;  // moved by a copy and read by an attention kernel
};

// Rates in bytes of K/V per second. 0 (or anything that is not a positive number): the lane
// is not available; for the disk: not known, and reads are expected to take no time.
struct lane_rates {
    double h2d;     // host to device copies
    double device;  // device attention, for this number of rows
    double cpu;     // CPU attention by all workers together, for this number of rows
    double disk;    // reads of spilled pages
    double copy_ns;    // fixed cost of a copy
    double launch_ns;  // fixed cost of a launch
};

struct plan_input {
    const plan_page * pages;  // ascending by number, each once; EMPTY ones are left out
    size_t            n;
    lane_rates        rates;
    uint32_t          slots;    // staging slots; 0: no stream lane
    uint32_t          workers;  // CPU workers; 0: no CPU lane
    uint32_t          rows, dv; // of the op: the size of a host partial
};

struct plan_step {
    kvp_page_ref ref;
    uint64_t     bytes;
    lane         where;
    bool         spilled;
};

// When the lanes are expected to be done, in ns from the start of the run.
struct plan_times {
    double link, device, cpu, disk, total;
};

// Steps in this order: hot pages, pages in frames, spilled pages, each ascending. A lane's
// order is the order of its steps; hot pages and the stream lane share one, that of the
// device. Pages in frames come first so that the disk works meanwhile. Another order is as
// good for the executor.
struct hybrid_plan {
    std::vector<plan_step> steps;
    plan_times             times;
    std::string            error;  // a sentence, if hybrid_plan_make failed
};

// hybrid_plan_make: 0, or -EINVAL where pages are not ascending or cold pages have no lane.
// out's memory is reused.
int hybrid_plan_make(const plan_input & in, hybrid_plan * out);

// --- rates -------------------------------------------------------------------------------

// A rate_meter is an exponentially weighted mean of measured rates, in time per byte. The
// value shown moves only when the mean has left a band around it, so that small changes do
// not make plans flap. Starts from a prior, stays within [rate_min, rate_max]; a prior of 0
// says that the lane does not exist, and stays.
class rate_meter {
public:
    static constexpr double weight   = 0.25;  // of a new sample
    static constexpr double band     = 0.15;  // relative
    static constexpr double jump     = 8;     // a sample counts as at most this factor off
    static constexpr double drift    = 1.0 / 64;
    static constexpr double rate_min = 1e6, rate_max = 1e14;

    explicit rate_meter(double prior = 0);
    void   add(uint64_t bytes, uint64_t ns);  // ignored where either is 0
    // rest is called instead of add when the lane was not used: the mean drifts to the
    // prior, so that a lane that was slow once is tried again.
    void   rest();
    double rate() const { return shown_; }
    double mean() const;

private:
    void   show();
    double prior_, ns_per_byte_, shown_;
};

// Measurements of a run. ns of 0: nothing measured.
struct lane_sample {
    uint64_t bytes, ns;
};

struct hybrid_measured {
    lane_sample link, device, cpu, disk;
};

// lane_meters has a meter for the link and the disk, and one for each doubling of rows for
// the device and the CPU: with many rows they are bound by arithmetic, not by memory. Not
// safe for concurrent use.
class lane_meters {
public:
    // A prior is the rate for one row per KV head; *_rows is the number of rows per KV head
    // up to which it holds, and beyond it the rate falls in proportion. Better too high
    // than too low: a lane that is never planned is never measured.
    struct priors {
        double h2d = 6e9, device = 200e9, cpu = 10e9, disk = 1e9;
        double device_rows = 64, cpu_rows = 8;
        double copy_ns = 8000, launch_ns = 5000;
    };

    explicit lane_meters(const priors & p);
    lane_rates rates(uint32_t rows_per_kv_head) const;
    // update takes the measurements of a run with a plan for these rows.
    void update(uint32_t rows_per_kv_head, const hybrid_measured & measured);

private:
    static constexpr uint32_t buckets = 24;
    static uint32_t           bucket(uint32_t rows_per_kv_head);

    double     copy_ns_, launch_ns_;
    rate_meter link_, disk_;
    rate_meter device_[buckets], cpu_[buckets];
};

// --- merge -------------------------------------------------------------------------------

// Floats of a partial's block.
size_t partial_floats(uint32_t rows, uint32_t dv);
// partial_at describes a block of that many floats; it does not write to it.
kvp_partial partial_at(float * block, uint32_t rows, uint32_t dv);
// partial_clear makes all rows empty.
void partial_clear(const kvp_partial & p);
// partial_merge folds from into into. Rows of from with m = -inf are not read further, so
// any value in their l and acc does no harm.
void partial_merge(const kvp_partial & into, const kvp_partial & from);
// partial_finish divides, with sinks [heads] or NULL, row r being of head r % heads. Empty
// rows give zeros.
void partial_finish(const kvp_partial & p, const float * sinks, uint32_t heads, float * out);

// --- run ---------------------------------------------------------------------------------

// Where pages come from. All functions may be called from several threads at once; pin may
// wait, and a thread never holds a pin while it asks for another one.
struct page_source {
    void * ctx;
    int  (*pin)(void * ctx, uint32_t page, kvp_page * out);
    void (*unpin)(void * ctx, uint32_t page);
    void (*prefetch)(void * ctx, const uint32_t * pages, uint32_t n);  // never waits
};

// The pager as a source; iface_layer must outlive the source.
struct iface_layer {
    const kvp_iface * iface;
    kvp_pager *       pager;
    uint32_t          layer;
};
page_source source_of(iface_layer * layer);

// Attention on the CPU. attend writes all of out: attention of the queries to one page.
// attend is called from workers 0 .. workers-1 at the same time, each with its own number.
// A backend whose queries come from the device may wait for them here, once.
struct cpu_attend {
    void * ctx;
    int (*attend)(void * ctx, uint32_t worker, const kvp_page_ref * ref, const kvp_page * page,
                  const kvp_partial * out);
};

// Shape of an op, as far as the executor must know it.
struct hybrid_op {
    uint32_t page_cells;
    size_t   row_k, row_v;  // bytes of a cell in K, in V
    size_t   v_offset;      // of V in a page
    size_t   page_bytes;    // of a slot
    uint32_t rows, dv;      // rows = queries * heads
    uint32_t slots;         // at most this many are used
};

// Memory for the block that merge_host copies, best page-locked. The memory must be usable
// until the executor is gone. Functions of NULL: ordinary memory.
struct host_memory {
    void * user;
    void * (*alloc)(void * user, size_t bytes);
    void   (*free)(void * user, void * memory);
};

class hybrid_executor {
public:
    // make: NULL where threads cannot be started. workers 0: plans without CPU steps only.
    static std::unique_ptr<hybrid_executor> make(uint32_t workers, const host_memory & memory = {});
    ~hybrid_executor();
    hybrid_executor(const hybrid_executor &) = delete;
    hybrid_executor & operator=(const hybrid_executor &) = delete;

    // run: 0 or a negative errno, and error() has a sentence. One run at a time. cpu may be
    // NULL if the plan has no CPU steps. measured may be NULL. A failed run leaves the
    // executor ready for the next.
    int run(const hybrid_op & op, const hybrid_plan & plan, const kvp_device & device,
            const page_source & source, const cpu_attend * cpu, hybrid_measured * measured);

    const char * error() const;
    uint32_t     workers() const;

    struct impl;  // executor.cpp

private:
    explicit hybrid_executor(std::unique_ptr<impl> impl);
    std::unique_ptr<impl> impl_;
};

}  // namespace kvp
