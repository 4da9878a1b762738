#include "emulator/gpu.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#define KVP_EMULATED 1
#include "cuda/dispatch.cuh"
#include "cuda/kernels.cuh"

namespace emulator {

using namespace kvp_gpu;

namespace {

constexpr size_t  pool_reserved = size_t(1) << 36;
constexpr size_t  alignment = 256;
constexpr size_t  gap = 4096;  // after a block, so that running over it is seen
constexpr uint8_t poison = 0xff;

} // namespace

emulated_gpu::emulated_gpu(uint64_t seed, const faults & faults, uint32_t capability)
    : random_(seed), faults_(faults), capability_(capability) {
    void * p = mmap(nullptr, pool_reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) {
        pool_ = static_cast<uint8_t *>(p);
        pool_bytes_ = pool_reserved;
    }
}

emulated_gpu::~emulated_gpu() {
    drain();
    if (pool_) {
        munmap(pool_, pool_reserved);
    }
}

// --- errors ---------------------------------------------------------------------------

int emulated_gpu::fail(int error, const std::string & sentence) {
    error_ = sentence;
    return error;
}

void emulated_gpu::blame(const std::string & sentence) {
    if (wrong_.empty() && !sentence.empty()) {
        wrong_ = sentence;
    }
}

int emulated_gpu::begin_call(const char * what) {
    if (int64_t(calls_++) == faults_.fail_at) {
        return fail(-EIO, std::string("the emulated device was told to fail at ") + what);
    }
    some_steps();
    return 0;
}

const char * emulated_gpu::last_error() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_.c_str();
}

std::string emulated_gpu::wrong() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return wrong_;
}

// --- memory ---------------------------------------------------------------------------

void * emulated_gpu::pool_alloc(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (begin_call("an allocation")) {
        return nullptr;
    }
    const size_t size = (bytes + alignment - 1) / alignment * alignment;
    if (pool_used_ + kept_bytes_ + size > faults_.memory || pool_used_ + size + gap > pool_bytes_) {
        fail(-ENOMEM, "the emulated device has no memory left");
        return nullptr;
    }
    uint8_t * block = pool_ + pool_used_;
    pool_used_ += size + gap;
    blocks_.emplace_back(block, bytes);
    // The former content is gone as far as the compute stream is concerned.
    enqueue(stream_compute, [block, size] { std::memset(block, poison, size + gap); });
    touch(stream_compute, block, bytes, true, "an allocation");
    return block;
}

void emulated_gpu::pool_free(void * memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!memory) {
        return;
    }
    if (blocks_.empty() || blocks_.back().first != memory) {
        blame("device memory was not freed in the reverse order of its allocation");
        return;
    }
    uint8_t * block = blocks_.back().first;
    const size_t bytes = blocks_.back().second;
    enqueue(stream_compute, [this, block, bytes] {
        if (std::any_of(block + bytes, block + bytes + gap, [](uint8_t x) { return x != poison; })) {
            blame("device memory was written past its end");
        }
        std::memset(block, poison, bytes);
    });
    touch(stream_compute, block, bytes, true, "the end of an allocation");
    pool_used_ = size_t(block - pool_);
    blocks_.pop_back();
}

size_t emulated_gpu::pool_blocks() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.size();
}

// Kept memory and the pool share the device's memory.
void * emulated_gpu::keep_alloc(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (begin_call("an allocation to keep")) {
        return nullptr;
    }
    if (pool_used_ + kept_bytes_ + bytes > faults_.memory) {
        fail(-ENOMEM, "the emulated device has no memory left");
        return nullptr;
    }
    uint8_t * block = static_cast<uint8_t *>(std::malloc(bytes + gap));
    std::memset(block, poison, bytes + gap);
    kept_[block] = bytes;
    kept_bytes_ += bytes;
    return block;
}

void emulated_gpu::keep_free(void * memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto block = kept_.find(static_cast<uint8_t *>(memory));
    if (block == kept_.end()) {
        blame("memory was given back that was not kept");
        return;
    }
    const std::string race = log_.give_back(block->first, block->second);
    blame(race);
    while (!race.empty() && step()) {  // enqueued work must find it there
    }
    const uint8_t * end = block->first + block->second;
    if (std::any_of(end, end + gap, [](uint8_t x) { return x != poison; })) {
        blame("kept memory was written past its end");
    }
    kept_bytes_ -= block->second;
    std::free(block->first);
    kept_.erase(block);
}

int emulated_gpu::memory(uint64_t * free, uint64_t * total) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("asking for free memory")) {
        return e;
    }
    *total = faults_.memory;
    *free = faults_.memory - std::min<uint64_t>(faults_.memory, pool_used_ + kept_bytes_);
    return 0;
}

size_t emulated_gpu::kept_blocks() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return kept_.size();
}

void * emulated_gpu::pinned_alloc(size_t bytes) { return std::malloc(bytes); }
void   emulated_gpu::pinned_free(void * memory) { std::free(memory); }

bool emulated_gpu::inside(const void * memory, size_t bytes) const {
    const uint8_t * p = static_cast<const uint8_t *>(memory);
    const auto after = kept_.upper_bound(const_cast<uint8_t *>(p));
    if (after != kept_.begin()) {
        const auto & block = *std::prev(after);
        if (p + bytes <= block.first + block.second) {
            return true;
        }
    }
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const std::pair<uint8_t *, size_t> & b) {
        return p >= b.first && p + bytes <= b.first + b.second;
    });
}

// --- streams --------------------------------------------------------------------------

void emulated_gpu::enqueue(stream s, std::function<void()> happen) {
    log_.enqueue(s);
    operation op;
    op.happen = std::move(happen);
    queues_[s].push_back(std::move(op));
}

void emulated_gpu::touch(stream s, const void * device, size_t bytes, bool write, const char * what) {
    if (!inside(device, bytes)) {
        blame(std::string(what) + " uses memory that is not the device's, or is no longer");
    }
    blame(log_.touch(s, device, bytes, write, what));
}

// One operation that may happen now; false where none may.
bool emulated_gpu::step() {
    stream may[n_streams];
    uint32_t n = 0;
    for (uint32_t s = 0; s < n_streams; ++s) {
        if (queues_[s].empty()) {
            continue;
        }
        const operation & op = queues_[s].front();
        if (!op.waits || events_[op.event].done >= op.record) {
            may[n++] = stream(s);
        }
    }
    if (!n) {
        return false;
    }
    const stream s = may[random_() % n];
    const operation op = std::move(queues_[s].front());
    queues_[s].pop_front();
    if (op.happen) {
        op.happen();
    }
    return true;
}

void emulated_gpu::some_steps() {
    for (uint64_t n = random_() % 4; n > 1 && step(); --n) {
    }
}

int emulated_gpu::copy_in(stream s, void * device, const void * host, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("a copy to the device")) {
        return e;
    }
    enqueue(s, [=] { std::memcpy(device, host, bytes); });
    touch(s, device, bytes, true, "a copy to the device");
    return 0;
}

int emulated_gpu::copy_out(stream s, void * host, const void * device, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("a copy to the host")) {
        return e;
    }
    enqueue(s, [=] { std::memcpy(host, device, bytes); });
    touch(s, device, bytes, false, "a copy to the host");
    return 0;
}

int emulated_gpu::copy_within(void * to, const void * from, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("a copy on the device")) {
        return e;
    }
    enqueue(stream_compute, [=] { std::memcpy(to, from, bytes); });
    touch(stream_compute, from, bytes, false, "a copy on the device");
    touch(stream_compute, to, bytes, true, "a copy on the device");
    return 0;
}

int emulated_gpu::zero(void * device, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("clearing memory")) {
        return e;
    }
    enqueue(stream_compute, [=] { std::memset(device, 0, bytes); });
    touch(stream_compute, device, bytes, true, "clearing memory");
    return 0;
}

int emulated_gpu::make_events(uint32_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("making events")) {
        return e;
    }
    events_.resize(std::max<size_t>(events_.size(), n));
    return 0;
}

int emulated_gpu::record(stream s, uint32_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("recording an event")) {
        return e;
    }
    const uint64_t number = ++events_[event].recorded;
    enqueue(s, [this, event, number] { events_[event].done = std::max(events_[event].done, number); });
    events_[event].seen = log_.at(s);
    return 0;
}

int emulated_gpu::wait(stream s, uint32_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("waiting for an event")) {
        return e;
    }
    if (int64_t(waits_++) == faults_.drop_wait) {
        return 0;
    }
    operation op;
    op.waits = true;
    op.event = event;
    op.record = events_[event].recorded;
    queues_[s].push_back(std::move(op));
    log_.pass(s, events_[event].seen);
    return 0;
}

int emulated_gpu::sync(uint32_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = begin_call("waiting on the host")) {
        return e;
    }
    const uint64_t number = events_[event].recorded;
    while (events_[event].done < number) {
        if (!step()) {
            blame("the host waits for an event that never happens");
            return fail(-EDEADLK, wrong_);
        }
    }
    log_.pass_to_host(events_[event].seen);
    return 0;
}

int emulated_gpu::elapsed(uint32_t, uint32_t, uint64_t *) {
    return fail(-ENOTSUP, "the emulated device has no clock");
}

int emulated_gpu::drain() {
    std::lock_guard<std::mutex> lock(mutex_);
    while (step()) {
    }
    for (uint32_t s = 0; s < n_streams; ++s) {
        if (!queues_[s].empty()) {
            blame("a stream waits for an event that never happens");
        }
        log_.pass_to_host(log_.at(s));
    }
    return 0;
}

// --- launches -------------------------------------------------------------------------

int emulated_gpu::launch(const char * what, const grid & g, std::function<void()> kernel) {
    if (int e = begin_call(what)) {
        return e;
    }
    order how;
    how.seed = random_();
    enqueue(stream_compute, [this, g, how, kernel] { blame(run(g, how, kernel)); });
    return 0;
}

void emulated_gpu::touch_partials(const partials & p, uint64_t first, uint64_t rows, uint32_t dv, bool write, const char * what) {
    touch(stream_compute, p.m + first, rows * sizeof(float), write, what);
    touch(stream_compute, p.l + first, rows * sizeof(float), write, what);
    touch(stream_compute, p.acc + first * dv, rows * dv * sizeof(float), write, what);
}

int emulated_gpu::attend(uint32_t dk, uint32_t dv, const attend_split & split, grid_size grid, const attend_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::function<void()> body;
    uint32_t threads = 0;
    kvp_emulated::with_attend_kernel(dk, dv, split, capability_ >= KVP_MMA_CAPABILITY, [&](void (*kernel)(attend_args), uint32_t n) {
        body = [kernel, a] { kernel(a); };
        threads = n;
    });
    if (!body) {
        return fail(-ENOTSUP, "there is no kernel for these head sizes");
    }
    if (int e = launch("an attention launch", {grid.x, grid.y, grid.z, threads}, body)) {
        return e;
    }
    const char * what = "an attention kernel";
    const uint32_t pages = grid.x / a.splits;
    for (uint32_t i = 0; i < pages; ++i) {
        const page_desc & page = a.pages[i];
        touch(stream_compute, page.k, size_t(page.cells) * a.kv_heads * a.row_k, false, what);
        touch(stream_compute, page.v, size_t(page.cells) * a.kv_heads * a.row_v, false, what);
    }
    touch(stream_compute, a.queries, a.n_q * sizeof(query_desc), false, what);
    touch_partials(a.out, 0, uint64_t(a.resume ? 1 : grid.x) * a.n_q * a.heads, dv, true, what);
    return 0;
}

int emulated_gpu::merge(const merge_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = launch("a merge", {a.rows, a.states, 1, merge_block}, [a] { kvp_emulated::merge(a); })) {
        return e;
    }
    for (uint64_t s = 0; s < a.states; ++s) {
        for (uint64_t i = 0; i < a.n; ++i) {
            touch_partials(a.from, (s * a.apart + i * a.step) * a.rows, a.rows, a.dv, false, "a merge");
        }
        touch_partials(a.state, s * a.apart * a.rows, a.rows, a.dv, true, "a merge");
    }
    return 0;
}

int emulated_gpu::clear(const merge_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = launch("clearing the state", {a.rows, 1, 1, merge_block}, [a] { kvp_emulated::clear(a); })) {
        return e;
    }
    touch_partials(a.state, 0, a.rows, a.dv, true, "clearing the state");
    return 0;
}

int emulated_gpu::finish(const finish_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = launch("finishing", {a.rows, 1, 1, merge_block}, [a] { kvp_emulated::finish(a); })) {
        return e;
    }
    touch_partials(a.state, 0, a.rows, a.dv, false, "finishing");
    touch(stream_compute, a.out, uint64_t(a.rows) * a.dv * sizeof(float), true, "finishing");
    return 0;
}

int emulated_gpu::quantize(const quantize_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t jobs = uint64_t(a.n) * a.heads * ((a.elements + 31) / 32);
    const uint32_t blocks = uint32_t((jobs + quant_block - 1) / quant_block);
    if (int e = launch("quantizing", {blocks, 1, 1, quant_block}, [a] { kvp_emulated::quantize(a); })) {
        return e;
    }
    touch(stream_compute, a.dst, uint64_t(a.n) * a.heads * a.row, true, "quantizing");
    return 0;
}

int emulated_gpu::patch(const patch_args & a) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (int e = launch("putting new rows into a page", {a.n, 1, 1, copy_block}, [a] { kvp_emulated::patch(a); })) {
        return e;
    }
    const char * what = "putting new rows into a page";
    touch(stream_compute, a.new_k, uint64_t(a.n) * a.cell_k, false, what);
    touch(stream_compute, a.new_v, uint64_t(a.n) * a.cell_v, false, what);
    touch(stream_compute, a.k, uint64_t(a.page_cells) * a.cell_k, true, what);
    touch(stream_compute, a.v, uint64_t(a.page_cells) * a.cell_v, true, what);
    return 0;
}

} // namespace emulator
