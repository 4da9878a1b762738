// Queries that choose, one after the other: the bounds that the choice lacks, the choice, and a
// pass over the chosen cells alone. Queries between them attend to all.
#include <algorithm>

#include "cpu/forward.h"

namespace kvp {

namespace {

// compute_unbounded computes those bounds that are lacking of the blocks that `then` lists.
template <typename F> void compute_unbounded(const pass & p, F then) {
    run & r = p.r;
    r.arrive_and_wait([&] {
        r.unbounded.clear();
        r.next_unbounded = 0;
        if (r.error() == 0) {
            r.unbounded = lacking(p.op, *p.data.cells, r.choosing->table, then());
        }
        for (const position_block * block : r.unbounded) {
            kvp_prefetch(r.pager, p.op.params.layer, block->pages.data(), (uint32_t) block->pages.size());
        }
    });
    uint32_t i;
    while ((i = r.next_unbounded.fetch_add(1)) < r.unbounded.size() && r.error() == 0) {
        const int error = compute_bounds(p.op, *r.unbounded[i], r.choosing->table);
        if (error != 0) {
            r.fail(error, kvp_last_error());
        }
    }
}

void choose_blocks(const pass & p, uint32_t query) {
    run & r = p.r;
    compute_unbounded(p, [&] {
        const char * q = reinterpret_cast<const char *>(p.io.q.data) + query * p.io.q.row_stride;
        r.choosing->begin(query, reinterpret_cast<const float *>(q), p.io.q.head_stride);
        return r.choosing->compared();
    });
    const auto nothing = [] {};
    r.arrive_and_wait(nothing);
    if (r.error() != 0) {
        return;  // of rows or bounds: there may be no choice to go on with
    }
    const uint32_t n = (uint32_t) r.choosing->blocks->size(), heads = p.op.params.heads;
    r.choosing->score_blocks(p.share_begin(n), p.share_end(n));
    r.arrive_and_wait(nothing);
    r.choosing->share_heads(p.share_begin(heads), p.share_end(heads));
    r.arrive_and_wait(nothing);
    r.choosing->add_worths(p.share_begin(n), p.share_end(n));
}

// run_of is the number of queries from `first` on that a pass computes together: one that
// chooses, or all up to the next of these.
uint32_t run_of(const pass & p, uint32_t first) {
    uint32_t end = first;
    while (end < p.op.n_q && !picks(p.op, p.data, end)) {
        end++;
    }
    return std::max(end - first, 1u);
}

// narrow makes the run's data and plan those of a part of the queries.
void narrow(const pass & p, const kvp_op & part, uint32_t first) {
    run & r = p.r;
    if (r.error() != 0) {
        return;
    }
    r.data      = picks(p.op, p.data, first) ? r.choosing->best() : part_of(p.data, first, part.n_q);
    r.plan      = plan_of(part, *r.data, r.plan.n_threads);
    r.next_span = 0;
    r.scratch.resize(r.plan.bytes / sizeof(float));
}

} // namespace

void bound_new_blocks(const pass & p) {
    compute_unbounded(p, [&] {
        std::vector<const position_block *> filled;
        for (const position_block & block : lists_of(p.data).filled) {
            filled.push_back(&block);
        }
        return filled;
    });
}

void attend_chosen(const pass & p) {
    run & r = p.r;
    const kvp_op & op = p.op;
    kvp_op part;
    part.batch  = op.batch;
    part.params = op.params;
    part.layer  = op.layer;
    for (uint32_t first = 0; first < op.n_q; first += part.n_q) {
        part.n_q = run_of(p, first);
        kvp_io io = p.io;
        io.q.data = reinterpret_cast<const float *>(reinterpret_cast<const char *>(io.q.data) + first * io.q.row_stride);
        io.out   += (size_t) first * op.params.heads * op.layer.dv;
        if (picks(op, p.data, first)) {
            choose_blocks(p, first);
        }
        r.arrive_and_wait([&] { narrow(p, part, first); });
        if (r.error() != 0) {
            return;
        }
        attend({r, part, io, r.plan, *r.data, p.kernels, p.thread, align(r.scratch.data())});
        r.arrive_and_wait([] {});
    }
}

} // namespace kvp
