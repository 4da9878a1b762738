// A forward pass of the CPU: rows, queries, pages, result.
#include "cpu/forward.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "pager/pager.h"

using namespace kvp;

namespace {

// check_io finds missing parts of a call. The decision whether the pass begins is made
// here for all threads: a later error must not turn back threads that start late.
void check_io(run & r, const kvp_io & io, size_t work_bytes) {
    if (r.error() != 0) {
        r.refused = true;
        return;
    }
    if (!io.q.data || !io.k_new.data != !io.v_new.data) {
        r.fail(-EINVAL, "Attention needs q, and k_new and v_new together or neither.");
    } else if (io.k_new.data && r.data->q_cell.empty()) {
        r.fail(-EINVAL, "Attention was given new rows of K and V by a batch that names no cells for them.");
    } else if (work_bytes < r.plan.bytes) {
        char message[128];
        std::snprintf(message, sizeof message, "Attention needs %zu bytes of scratch memory and was given %zu.", r.plan.bytes, work_bytes);
        r.fail(-EINVAL, message);
    }
    r.refused = r.error() != 0;
}

void begin_scan(run & r, const kvp_op & op) {
    if (r.error() != 0 || r.data->list.empty()) {
        return;
    }
    const attention_plan & plan = r.plan;
    const bool ordered = !plan.spans_in_use || plan.span_pages > 1;
    const int  error   = kvp_scan_begin(r.pager, op.params.layer, r.data->list.data(), (uint32_t) r.data->list.size(),
                                        ordered ? plan.n_threads : 0, ordered ? 1 : plan.parts, &r.scan);
    if (error != 0) {
        r.fail(error, kvp_last_error());
    }
}

void end_scan(run & r) {
    if (r.scan) {
        kvp_scan_end(r.scan);
        r.scan = nullptr;
    }
}

void clear_out(const kvp_op & op, const kvp_io & io, uint32_t thread) {
    if (thread == 0) {
        std::fill_n(io.out, (size_t) op.n_q * op.params.heads * op.layer.dv, 0.0f);
    }
}

} // namespace

namespace kvp {

void attend(const pass & p) {
    run & r = p.r;
    prepare_queries(p);
    r.arrive_and_wait([&] { begin_scan(r, p.op); });
    if (r.error() == 0 && !p.data.list.empty()) {
        if (p.plan.spans_in_use) {
            attend_spans(p);
        } else {
            attend_panels(p);
        }
    }
    r.arrive_and_wait([&] { end_scan(r); });
    if (r.error() != 0) {
        return;
    }
    if (p.data.list.empty()) {
        clear_out(p.op, p.io, p.thread);
    } else if (p.plan.spans_in_use) {
        write_spans(p);
    } else {
        write_panels(p);
    }
}

} // namespace kvp

size_t kvp_cpu_work_bytes(const kvp_op * op, uint32_t n_threads) {
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(op->batch->pager));
    const std::shared_ptr<const batch_data> & data = op->batch->data;
    return data && !chooses(*op, *data) ? plan_of(*op, *data, n_threads).bytes : 0;
}

int kvp_cpu_forward(kvp_op * op, const kvp_io * io, uint32_t thread, uint32_t n_threads, void * work, size_t work_bytes) {
    const std::shared_ptr<run> r = enter_run(*op, n_threads);
    r->arrive_and_wait([&] { check_io(*r, *io, work_bytes); });
    if (r->refused) {
        clear_out(*op, *io, thread);
        return r->say_error();
    }
    const std::shared_ptr<const batch_data> data = r->data;
    const bool chosen = chooses(*op, *data);
    const pass p = {*r, *op, *io, r->plan, *data, kernels_in_use(), thread, align(work)};
    if (io->k_new.data) {
        store_rows(p);
        if (r->choosing) {
            bound_new_blocks(p);
        }
    }
    if (chosen) {
        attend_chosen(p);
    } else {
        attend(p);
    }
    if (r->error() != 0) {
        clear_out(*op, *io, thread);
        return r->say_error();
    }
    return 0;
}
