#include "cuda/forward.h"

#include <errno.h>

#include <algorithm>
#include <mutex>

namespace kvp_gpu {

namespace {

constexpr uint32_t slots_default = 3, slots_max = 16;

// The CPU lane of one op. The queries are copied from the device when the first page is
// ready.
struct cpu_job {
    gpu &                   device;
    const kvp_cuda_config & config;
    decltype(kvp_iface::cpu_page) cpu_page;
    kvp_op *                op;
    kvp_io                  io;
    std::once_flag          once;
    int                     error = 0;
};

int attend_on_cpu(void * ctx, uint32_t worker, const kvp_page_ref * ref, const kvp_page * page, const kvp_partial * out) {
    cpu_job & job = *static_cast<cpu_job *>(ctx);
    std::call_once(job.once, [&] { job.error = job.device.sync(event_queries); });
    if (job.error) {
        return job.error;
    }
    return job.cpu_page(job.config.cpu_user, worker, job.op, &job.io, ref->page, ref->cells, ref->cls, page, out->m, out->l, out->acc);
}

bool float_strides(const kvp_f32 & x) {
    return x.row_stride % 4 == 0 && x.head_stride % 4 == 0;
}

uint32_t slots_of(const kvp_cuda_config & config) {
    return config.slots == 0 ? slots_default : std::min(std::max(config.slots, 2u), slots_max);
}

} // namespace

std::unique_ptr<paged_gpu> paged_gpu::make(gpu & g, const kvp_cuda_config & config) {
    std::unique_ptr<paged_gpu> p(new paged_gpu(g, config));
    const kvp::host_memory memory = {
        &g,
        [](void * user, size_t bytes) { return static_cast<gpu *>(user)->pinned_alloc(bytes); },
        [](void * user, void * block) { static_cast<gpu *>(user)->pinned_free(block); },
    };
    if (g.make_events(own_events) == 0) {
        p->executor_ = kvp::hybrid_executor::make(config.workers, memory);
    }
    return p->executor_ ? std::move(p) : nullptr;
}

paged_gpu::paged_gpu(gpu & g, const kvp_cuda_config & config)
    : gpu_(g), config_(config), meters_(kvp::lane_meters::priors()), metadata_(g), rows_(g), queries_(g),
      hot_(g, config.vram_bytes, config.vram_keep) {}

paged_gpu::~paged_gpu() {
    // The last op's metadata may still be in transfer from page-locked memory. The stream
    // of the transfer may be gone with its engine, but the event still exists.
    if (executor_) {
        gpu_.sync(event_uploaded);
    }
}

// The choices that the plan leaves to the backend: where a page must go, and the order of
// the device.
void paged_gpu::settle_order(const op_view & op, const op_session & session) {
    for (kvp::plan_step & step : plan_.steps) {
        if (step.where == kvp::lane::device_hot) {
            continue;
        }
        // The pager does not have this batch's rows yet; staged copies of their pages do.
        // Pages that are to be kept on the device have to go there.
        bool usable = false;
        if (session.writes_to(step.ref.page) || hot_.copy_of(step.ref.page, &usable)) {
            step.where = kvp::lane::stream;
        }
        step.spilled = op.iface->resident(op.pager, op.params->layer, step.ref.page) == 0;
    }
    // Where results must repeat, the order depends neither on residency nor on hot pages;
    // only the pages read ahead do.
    if (workers(op) == 0) {
        std::sort(plan_.steps.begin(), plan_.steps.end(),
                  [](const kvp::plan_step & a, const kvp::plan_step & b) { return a.ref.page < b.ref.page; });
    }
}

int paged_gpu::make_plan(const op_view & op, const op_session & session, const std::vector<uint32_t> & pages, std::string * why) {
    std::vector<kvp::plan_page> in(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
        bool usable = false;
        hot_.copy_of(pages[i], &usable);
        const bool resident = op.iface->resident(op.pager, op.params->layer, pages[i]) != 0;
        in[i].ref = session.ref(i);
        in[i].bytes = uint64_t(in[i].ref.cells) * (op.row_k + op.row_v);
        in[i].where = usable ? kvp::residency::device_hot : resident ? kvp::residency::host_frame : kvp::residency::spilled;
    }
    kvp::plan_input input = {};
    input.pages = in.data();
    input.n = in.size();
    input.rates = meters_.rates(op.desc->n_q * op.group);
    input.slots = slots_of(config_);
    input.workers = workers(op);
    input.rows = op.rows;
    input.dv = op.layer->dv;
    if (int e = kvp::hybrid_plan_make(input, &plan_)) {
        *why = "Paged attention on CUDA could not plan its pages: " + plan_.error;
        return e;
    }
    settle_order(op, session);
    return 0;
}

int paged_gpu::fetch_queries(const op_view & op, const kvp_io & io, kvp_io * host) {
    const int64_t bytes = int64_t(op.desc->n_q - 1) * io.q.row_stride + int64_t(op.params->heads - 1) * io.q.head_stride
                        + int64_t(op.layer->dk) * int64_t(sizeof(float));
    uint8_t * block = io.q.row_stride < 0 || io.q.head_stride < 0 ? nullptr : queries_.at_least(size_t(bytes));
    if (!block) {
        return -ENOMEM;
    }
    *host = kvp_io();
    host->q = io.q;
    host->q.data = reinterpret_cast<const float *>(block);
    int e = gpu_.record(stream_compute, event_order);
    e = e ? e : gpu_.wait(stream_back, event_order);
    e = e ? e : gpu_.copy_out(stream_back, block, io.q.data, size_t(bytes));
    return e ? e : gpu_.record(stream_back, event_queries);
}

int paged_gpu::compute(const op_view & op, op_session & session, const kvp_io & io, std::string * why) {
    const std::vector<uint32_t> pages = pages_of(op);
    hot_.begin(op, pages, io.k_new.data != nullptr);
    if (int e = session.prepare(pages)) {
        *why = session.error();
        return e;
    }
    hot_.admit();
    if (int e = make_plan(op, session, pages, why)) {
        return e;
    }
    cpu_job job = {gpu_, config_, cpu_page(op), op.op, {}, {}, 0};
    const bool on_cpu = std::any_of(plan_.steps.begin(), plan_.steps.end(),
                                    [](const kvp::plan_step & step) { return step.where == kvp::lane::cpu; });
    if (on_cpu) {
        if (int e = fetch_queries(op, io, &job.io)) {
            *why = std::string("Paged attention on CUDA could not fetch the queries for the CPU's part: ") + gpu_.last_error();
            return e;
        }
    }
    kvp::hybrid_op shape = {};
    shape.page_cells = op.page_cells;
    shape.row_k = op.row_k;
    shape.row_v = op.row_v;
    shape.v_offset = op.v_offset;
    shape.page_bytes = op.page_bytes;
    shape.rows = op.rows;
    shape.dv = op.layer->dv;
    shape.slots = slots_of(config_);
    const kvp::cpu_attend cpu = {&job, attend_on_cpu};
    kvp::iface_layer layer = {op.iface, op.pager, op.params->layer};
    int e = executor_->run(shape, plan_, session.device(), kvp::source_of(&layer), on_cpu ? &cpu : nullptr, &measured_);
    if (e) {
        *why = std::string("Paged attention on CUDA failed: ") + executor_->error();
        return e;
    }
    meters_.update(op.desc->n_q * op.group, measured_);
    e = session.settle();
    *why = session.error();
    if (!e) {
        hot_.commit();
    }
    return e;
}

int paged_gpu::forward(kvp_op * op_, const kvp_io & io) {
    op_view op;
    std::string why;
    if (int e = read_op(op_, &op, &why)) {
        const kvp_iface * iface = reinterpret_cast<const kvp_op_head *>(op_)->iface;
        if (KVP_IFACE_HAS(iface, fail)) {
            iface->fail(iface->pager(op_), e, why.c_str());
        }
        return e;
    }
    if (op.desc->n_q == 0) {
        return 0;
    }
    op_session session(gpu_, op, io, hot_, metadata_, rows_);
    int e = 0;
    if (op.desc->reserve) {
        e = session.reserve(slots_of(config_));
        why = session.error();
    } else if (!float_strides(io.q) || !float_strides(io.k_new) || !float_strides(io.v_new)) {
        e = -EINVAL;
        why = "Paged attention on CUDA was given rows whose strides are not whole floats.";
    } else {
        e = compute(op, session, io, &why);
        if (e) {
            gpu_.drain();
            gpu_.zero(io.out, size_t(op.rows) * op.layer->dv * sizeof(float));
        }
        session.release();
    }
    if (e) {
        op.iface->fail(op.pager, e, why.c_str());
    }
    return e;
}

} // namespace kvp_gpu
