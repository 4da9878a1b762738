// One op on a GPU, as the device that the hybrid executor drives (hybrid/device.h).
//
//   prepare    memory from the pool; metadata to the device; new rows quantized, and on
//              their way to the host
//   device()   for hybrid_executor::run
//   settle     new rows are in the pager
//   release    the pool's memory goes back, in the reverse order
//
// Events 0 .. own_events-1 are this file's; the executor's follow.
#pragma once

#include <string>
#include <vector>

#include "cuda/gpu.h"
#include "cuda/hot_tier.h"
#include "cuda/metadata.h"
#include "cuda/op_view.h"
#include "hybrid/device.h"

namespace kvp_gpu {

// Growing page-locked memory that is kept from op to op.
class pinned_block {
public:
    explicit pinned_block(gpu & g) : gpu_(g) {}
    ~pinned_block();
    pinned_block(const pinned_block &) = delete;
    pinned_block & operator=(const pinned_block &) = delete;
    uint8_t * at_least(size_t bytes);  // NULL: no memory

private:
    gpu &     gpu_;
    uint8_t * memory_ = nullptr;
    size_t    bytes_ = 0;
};

constexpr uint32_t event_uploaded = 0;  // the metadata has left its pinned block
constexpr uint32_t event_order    = 1;  // the compute stream has reached the beginning of the op
constexpr uint32_t event_rows     = 2;  // the new rows are quantized
constexpr uint32_t event_back     = 3;  // the new rows are in host memory
constexpr uint32_t event_queries  = 4;  // the queries are in host memory, for the CPU lane
constexpr uint32_t own_events     = 5;

class op_session {
public:
    op_session(gpu & g, const op_view & op, const kvp_io & io, const hot_tier & hot, pinned_block & metadata, pinned_block & rows)
        : gpu_(g), op_(op), io_(io), hot_(hot), metadata_(metadata), rows_(rows) {}

    // prepare is called after the tier's begin.
    int  prepare(const std::vector<uint32_t> & pages);
    // reserve takes and gives back the memory of the largest op of this shape.
    int  reserve(uint32_t slots);
    kvp_device device();
    int  settle();
    void release();

    // For the plan: returns whether the batch writes to a page.
    bool     writes_to(uint32_t page) const;
    kvp_page_ref ref(size_t index) const;  // of the page list
    const std::string & error() const { return error_; }

private:
    struct launch_page {
        const uint8_t * k;
        const uint8_t * v;
        const kvp_page_ref * ref;
    };

    // The executor's table of static functions.
    static op_session & of(void * ctx) { return *static_cast<op_session *>(ctx); }
    int  begin(uint32_t slots, size_t slot_bytes, uint32_t events);
    void end();
    int  attend_hot(const kvp_page_ref * pages, uint32_t n);
    int  attend_slot(uint32_t slot, const kvp_page_ref & page);
    int  merge_host(const kvp_partial & partial);
    int  finish();

    int  take(size_t bytes, uint8_t ** out, const char * what);
    int  take_memory(size_t metadata_bytes, uint32_t launch_pages_max);
    int  upload(const std::vector<uint32_t> & pages);
    int  quantize_rows();
    int  quantize_one(const kvp_f32 & from, uint32_t elements, int type, size_t cell_bytes, uint8_t * to);
    int  patch_page(uint32_t page, uint8_t * at);
    int  keep_copy(const kvp_page_ref & page, const uint8_t * from, uint8_t * to);
    int  attend(const launch_page * pages, uint32_t n);
    int  merge_pages(const partials & from, uint32_t pages);
    attend_args arguments() const;
    partials    partials_at(uint8_t * block, uint64_t rows) const;
    int  fail(int error, const std::string & sentence);
    bool new_rows() const { return io_.k_new.data != nullptr; }

    gpu &           gpu_;
    const op_view   op_;
    const kvp_io    io_;
    const hot_tier & hot_;
    pinned_block &  metadata_;
    pinned_block &  rows_;
    std::string     error_;

    attend_split          split_ = {};
    std::vector<uint32_t> pages_;
    metadata_layout       layout_ = {};
    std::vector<uint32_t> written_;       // pages that get new rows, ascending
    std::vector<void *>   taken_;         // from the pool, in order
    uint8_t * state_ = nullptr;
    uint8_t * scratch_ = nullptr;
    uint8_t * meta_ = nullptr;
    uint8_t * new_k_ = nullptr;
    uint8_t * new_v_ = nullptr;
    uint8_t * slots_ = nullptr;
    size_t    slot_bytes_ = 0;
    uint32_t  batch_pages_ = 1;           // of one launch of hot pages
};

} // namespace kvp_gpu
