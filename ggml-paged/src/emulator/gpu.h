// An emulated GPU: kernels run in the emulator, device memory is set apart from host
// memory, and enqueued work happens late, at any time that streams and events allow,
// chosen by a seed. So a missing wait shows as wrong results; access.h finds a missing
// wait even if the result happens to be right.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu.h"
#include "emulator/access.h"
#include "emulator/block.h"

namespace emulator {

// Faults that a test makes on purpose.
struct faults {
    int64_t  fail_at = -1;        // this call, counted from 0, fails with -EIO
    int64_t  drop_wait = -1;      // this wait of a stream, counted from 0, is left out
    uint64_t memory = ~0ull;      // bytes of device memory
};

class emulated_gpu : public kvp_gpu::gpu {
public:
    using stream = kvp_gpu::stream;

    // capability: as CUDA's compute capability, times ten.
    explicit emulated_gpu(uint64_t seed, const faults & faults = {}, uint32_t capability = 61);
    ~emulated_gpu() override;

    void * pool_alloc(size_t bytes) override;
    void   pool_free(void * memory) override;
    void * keep_alloc(size_t bytes) override;
    void   keep_free(void * memory) override;
    int    memory(uint64_t * free, uint64_t * total) override;
    void * pinned_alloc(size_t bytes) override;
    void   pinned_free(void * memory) override;
    int    copy_in(stream s, void * device, const void * host, size_t bytes) override;
    int    copy_out(stream s, void * host, const void * device, size_t bytes) override;
    int    copy_within(void * to, const void * from, size_t bytes) override;
    int    zero(void * device, size_t bytes) override;
    int    make_events(uint32_t n) override;
    int    record(stream s, uint32_t event) override;
    int    wait(stream s, uint32_t event) override;
    int    sync(uint32_t event) override;
    bool   can_time() const override { return false; }
    int    elapsed(uint32_t from, uint32_t to, uint64_t * ns) override;
    int    drain() override;
    int    attend(uint32_t dk, uint32_t dv, const kvp_gpu::attend_split & split, kvp_gpu::grid_size grid,
                  const kvp_gpu::attend_args & a) override;
    int    merge(const kvp_gpu::merge_args & a) override;
    int    clear(const kvp_gpu::merge_args & a) override;
    int    finish(const kvp_gpu::finish_args & a) override;
    int    quantize(const kvp_gpu::quantize_args & a) override;
    int    patch(const kvp_gpu::patch_args & a) override;
    const char * last_error() const override;

    // wrong is a fault found in the program, not in the device: a race, a
    // copy outside of memory, a kernel's misuse of barriers. Empty: nothing.
    std::string wrong() const;
    uint64_t    calls() const { return calls_; }
    uint64_t    waits() const { return waits_; }
    size_t      pool_blocks() const;  // that were not freed
    size_t      kept_blocks() const;

private:
    struct operation {
        std::function<void()> happen;
        bool     waits = false;
        uint32_t event = 0;
        uint64_t record = 0;  // number of the record that is waited for
    };
    struct event_state {
        uint64_t     recorded = 0, done = 0;
        vector_clock seen = {};
    };

    int  begin_call(const char * what);
    void enqueue(stream s, std::function<void()> happen);
    void touch(stream s, const void * device, size_t bytes, bool write, const char * what);
    void touch_partials(const kvp_gpu::partials & p, uint64_t first, uint64_t rows, uint32_t dv, bool write, const char * what);
    int  launch(const char * what, const grid & g, std::function<void()> kernel);
    bool step();
    void some_steps();
    int  fail(int error, const std::string & sentence);
    void blame(const std::string & sentence);
    bool inside(const void * memory, size_t bytes) const;

    mutable std::mutex     mutex_;
    std::mt19937_64        random_;
    faults                 faults_;
    const uint32_t         capability_;
    std::deque<operation>  queues_[kvp_gpu::n_streams];
    std::vector<event_state> events_;
    access_log             log_;
    uint64_t               calls_ = 0, waits_ = 0;
    std::string            error_, wrong_;

    uint8_t *              pool_ = nullptr;
    size_t                 pool_bytes_ = 0, pool_used_ = 0;
    std::vector<std::pair<uint8_t *, size_t>> blocks_;  // of the pool, in the order of allocation
    std::map<uint8_t *, size_t> kept_;
    uint64_t               kept_bytes_ = 0;
};

} // namespace emulator
