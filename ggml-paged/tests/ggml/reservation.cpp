// Reservation: Ollama hands the scheduler a graph of the largest batch before any other.
#include <stdexcept>

#include "checks.h"
#include "graphs.h"
#include "paged_case.h"

namespace {

constexpr uint32_t TOKENS = 600, BATCH_MAX = 64;

void must_reserve(const engine & e, const attention_graph & g) {
    ggml_backend_sched_reset(e.sched());
    if (!ggml_backend_sched_reserve(e.sched(), g.graph())) {
        throw std::runtime_error("the reservation was refused");
    }
}

// reserve_batch is the runner's description of a batch of which only sizes matter.
kvp_batch_desc reserve_batch(const case_inputs & in) {
    kvp_batch_desc d = {};
    d.group   = in.layer.group;
    d.n_cells = in.n_cells;
    d.n_q     = (uint32_t) in.q_pos.size();
    d.window  = INT32_MAX;
    d.reserve = 1;
    return d;
}

} // namespace

void check_a_reservation_computes_nothing(const modules & m) {
    const engine e(m, 2);
    const test_case c = a_case(TOKENS, BATCH_MAX);
    const case_inputs in = make_inputs(c);
    paged_case held(m.computing(), c, in, {2});
    kvp_stats before, after;
    kvp_pager_stats(held.pager(), &before);
    held.begin(reserve_batch(in));
    const layer_weights weights(e, c, in, false);
    must_reserve(e, attention_graph::paged(e, weights, c, in, held.op()));
    held.check();
    kvp_pager_stats(held.pager(), &after);
    if (after.hits + after.misses + after.reads != before.hits + before.misses + before.reads) {
        throw std::runtime_error("pages were visited");
    }
}

void check_a_reservation_is_enough(const modules & m) {
    const engine e(m, 2);
    const test_case most = a_case(TOKENS, BATCH_MAX);
    const case_inputs in = make_inputs(most);
    paged_case held(m.computing(), most, in, {2});
    held.begin(reserve_batch(in));
    const layer_weights weights(e, most, in, false);
    must_reserve(e, attention_graph::paged(e, weights, most, in, held.op()));
    const size_t reserved = ggml_backend_sched_get_buffer_size(e.sched(), e.computing());
    for (const uint32_t n_q : {1u, BATCH_MAX, 7u}) {
        const test_case c = a_case(TOKENS, n_q);
        const case_inputs now = make_inputs(c);
        paged_case used(m.computing(), c, now, {2});
        used.begin(now.batch_desc());
        const std::vector<float> out = attention_graph::paged(e, weights, c, now, used.op()).compute(e, e.computing());
        used.check();
        if (!(error_of(c, final_inputs(c), out) <= error_max(m))) {
            throw std::runtime_error("a batch after the reservation is wrong");
        }
        if (ggml_backend_sched_get_buffer_size(e.sched(), e.computing()) != reserved) {
            throw std::runtime_error("a batch after the reservation took more memory");
        }
    }
}

// On a device the op takes staging slots and partial results from the backend's pool, which
// Ollama must know of when it fits a model: with memory taken or only counted.
void check_a_reservation_counts_staging_memory(const modules & m) {
    const test_case c = a_case(TOKENS, BATCH_MAX);
    const case_inputs in = make_inputs(c);
    size_t sizes[2];
    for (const bool alloc : {false, true}) {
        const engine e(m, 2, alloc);
        paged_case held(m.computing(), c, in);
        held.begin(reserve_batch(in));
        const layer_weights weights(e, c, in, false);
        must_reserve(e, attention_graph::paged(e, weights, c, in, held.op()));
        held.check();
        sizes[alloc] = e.reserved();
        // q, k, v and the results are less than these.
        const size_t slots = e.on_device() ? 2 * kvp_layer_page_bytes(held.pager(), 0) : 0;
        const size_t tensors = sizeof(float) * c.n_q * c.heads * c.dv;
        if (sizes[alloc] < slots + tensors) {
            throw std::runtime_error("the reservation is of " + std::to_string(sizes[alloc]) + " bytes, which staging alone exceeds");
        }
    }
    if (sizes[0] != sizes[1]) {
        throw std::runtime_error("counted memory is " + std::to_string(sizes[0]) + " bytes, taken memory " + std::to_string(sizes[1]));
    }
}
