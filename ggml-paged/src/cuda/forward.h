// Paged attention on a GPU, whichever: plans which page goes where, runs the executor, sees
// to the new rows.
#pragma once

#include <memory>
#include <string>

#include "cuda/session.h"
#include "hybrid/hybrid.h"
#include "paged_attn_cuda.h"

namespace kvp_gpu {

class paged_gpu {
public:
    // The GPU must outlive the result. NULL if threads or events cannot be made.
    static std::unique_ptr<paged_gpu> make(gpu & g, const kvp_cuda_config & config);
    ~paged_gpu();

    int forward(kvp_op * op, const kvp_io & io);

    // Counts of the last op, for benchmarks; pages kept in device memory.
    const kvp::hybrid_measured & measured() const { return measured_; }
    hot_tier::counters hot() const { return hot_.count(); }

private:
    paged_gpu(gpu & g, const kvp_cuda_config & config);
    int  compute(const op_view & op, op_session & session, const kvp_io & io, std::string * why);
    int  make_plan(const op_view & op, const op_session & session, const std::vector<uint32_t> & pages, std::string * why);
    void settle_order(const op_view & op, const op_session & session);
    int  fetch_queries(const op_view & op, const kvp_io & io, kvp_io * host);
    // The workers' attention to a page of the op; NULL: they have nothing to do.
    decltype(kvp_iface::cpu_page) cpu_page(const op_view & op) const {
        return !config_.workers ? nullptr : config_.cpu_page ? config_.cpu_page : op.cpu_page;
    }
    uint32_t workers(const op_view & op) const { return cpu_page(op) ? config_.workers : 0; }

    gpu &                 gpu_;
    const kvp_cuda_config config_;
    std::unique_ptr<kvp::hybrid_executor> executor_;
    kvp::lane_meters      meters_;
    kvp::hybrid_plan      plan_;
    kvp::hybrid_measured  measured_ = {};
    pinned_block          metadata_, rows_, queries_;
    hot_tier              hot_;
};

} // namespace kvp_gpu
