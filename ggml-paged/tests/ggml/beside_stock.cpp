// Results of the op through a scheduler: beside f64, beside stock attention, and beside
// itself where it must give the same bits.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "checks.h"
#include "graphs.h"
#include "paged_case.h"

namespace {

// Stock attention sums in f16 on CPUs. This only says that both compute the same thing.
constexpr double STOCK_ERROR_MAX = 0.05;

std::vector<float> paged(const modules & m, const engine & e, const test_case & c, rows_kind rows = rows_kind::separate,
                         uint32_t frames = 2) {
    // The rows of the batch are poison until they are stored, except where they are already.
    const case_inputs in = rows == rows_kind::none ? final_inputs(c) : make_inputs(c);
    paged_case held(m.computing(), c, in, {frames});
    held.begin(in.batch_desc());
    const layer_weights weights(e, c, in, false);
    const std::vector<float> out = attention_graph::paged(e, weights, c, in, held.op(), rows).compute(e, e.computing());
    held.check();
    return out;
}

void must_equal(const std::vector<float> & a, const std::vector<float> & b, const char * what) {
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
        throw std::runtime_error(std::string(what) + " gives other bits");
    }
}

double must_be_near(const test_case & c, const case_inputs & final, const std::vector<float> & out, double error_max) {
    const double error = error_of(c, final, out);
    if (!(error <= error_max)) {
        throw std::runtime_error("the error is " + std::to_string(error) + " of max|V|");
    }
    return error;
}

} // namespace

both_errors errors_of_both(const modules & m, const test_case & c) {
    const engine e(m, 2);
    const case_inputs in = make_inputs(c), final = final_inputs(c);
    both_errors errors;
    errors.paged = must_be_near(c, final, paged(m, e, c), error_max(m));
    const layer_weights weights(e, c, in, true);
    errors.stock = error_of(c, final, attention_graph::stock(e, weights, c, in).compute(e, e.computing()));
    return errors;
}

both_errors check_beside_stock(const modules & m, const test_case & c) {
    const both_errors errors = errors_of_both(m, c);
    if (!(errors.stock <= STOCK_ERROR_MAX)) {
        throw std::runtime_error("stock attention: the error is " + std::to_string(errors.stock) + " of max|V|");
    }
    return errors;
}

void check_threads_give_the_same_bits(const modules & m) {
    for (const uint32_t n_q : {1u, 40u}) {
        const test_case c = a_case(900, n_q);
        const std::vector<float> one = paged(m, engine(m, 1), c);
        must_be_near(c, final_inputs(c), one, error_max(m));
        for (const uint32_t threads : {2u, 3u, 7u}) {
            must_equal(paged(m, engine(m, threads), c, rows_kind::separate, threads), one, "another number of threads");
        }
    }
}

void check_rows_of_one_projection(const modules & m) {
    const engine e(m, 2);
    for (const uint32_t n_q : {1u, 3u, 40u}) {
        const test_case c = a_case(200, n_q);
        must_equal(paged(m, e, c, rows_kind::fused), paged(m, e, c), "q, k and v in one tensor");
    }
}

void check_rows_that_are_stored_already(const modules & m) {
    const engine e(m, 2);
    const test_case c = a_case(300, 4);
    must_equal(paged(m, e, c, rows_kind::none), paged(m, e, c), "a layer without rows of its own");
}

// A scheduler computes graph after graph; a device may begin to replay graphs that look
// the same.
void check_steps_of_one_sequence(const modules & m) {
    const engine e(m, 2);
    const test_case whole = a_case(1000, 24);
    const case_inputs in = make_inputs(whole), final = final_inputs(whole);
    paged_case held(m.computing(), whole, in, {3});
    const layer_weights weights(e, whole, in, false);
    for (uint32_t step = 0; step < whole.n_q; step++) {
        test_case one = whole;
        one.n_q = 1;
        case_inputs now = final;
        const auto row = [&](std::vector<float> & rows, uint32_t n) {
            rows = std::vector<float>(rows.begin() + step * n, rows.begin() + (step + 1) * n);
        };
        row(now.q, whole.heads * whole.dk);
        row(now.k_new, whole.kv_heads * whole.dk);
        row(now.v_new, whole.kv_heads * whole.dv);
        now.q_pos = {in.q_pos[step]};
        now.q_seq = {in.q_seq[step]};
        now.q_cell = {in.q_cell[step]};
        for (uint32_t later = step + 1; later < whole.n_q; later++) {
            now.seqs[in.q_cell[later]] = 0;
        }
        held.begin(now.batch_desc());
        must_be_near(one, now, attention_graph::paged(e, weights, one, now, held.op()).compute(e, e.computing()), error_max(m));
    }
    held.check();
}

void check_refused_ops_run_on_the_cpu(const modules & m) {
    const engine e(m, 2);
    test_case c = a_case(200, 3);
    c.dk = c.dv = 48;  // which the CPU can, and no device
    const case_inputs in = make_inputs(c);
    paged_case held(m.computing(), c, in);
    held.begin(in.batch_desc());
    const layer_weights weights(e, c, in, false);
    must_be_near(c, final_inputs(c), attention_graph::paged(e, weights, c, in, held.op()).compute(e, e.cpu()), ERROR_MAX_CPU);
    held.check();
}

namespace {

// best_ms is the best of several runs, of fewer where one takes long.
double best_ms(const engine & e, const attention_graph & graph) {
    constexpr int    runs = 7;
    constexpr double enough_ms = 1000;
    double best = INFINITY, total = 0;
    for (int i = 0; i < runs && total < enough_ms; i++) {
        const auto begin = std::chrono::steady_clock::now();
        graph.run(e);
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
        best = std::min(best, ms);
        total += ms;
    }
    return best;
}

void time_one(const modules & m, const engine & e, const test_case & c, std::FILE * json) {
    const case_inputs in = make_inputs(c);
    const layer_weights weights(e, c, in, true);
    const double stock = best_ms(e, attention_graph::stock(e, weights, c, in));
    paged_case held(m.computing(), c, in);
    held.begin(in.batch_desc());
    const double paged = best_ms(e, attention_graph::paged(e, weights, c, in, held.op()));
    held.check();
    std::printf("%7u tokens %4u queries %2u/%u heads %-4s  paged %9.3f ms  stock %9.3f ms\n", c.tokens, c.n_q, c.heads,
                c.kv_heads, kvp_type_name(c.type_k), paged, stock);
    std::fflush(stdout);
    if (json) {
        std::fprintf(json, "{\"backend\":\"%s\",\"tokens\":%u,\"queries\":%u,\"heads\":%u,\"kv_heads\":%u,\"type\":\"%s\",\"paged_ms\":%.4f,\"stock_ms\":%.4f}\n",
                     ggml_backend_name(e.computing()), c.tokens, c.n_q, c.heads, c.kv_heads, kvp_type_name(c.type_k), paged, stock);
        std::fflush(json);
    }
}

} // namespace

void time_beside_stock(const modules & m, std::FILE * json) {
    const engine e(m, 4);
    for (const int type : {KVP_F16, KVP_Q8_0}) {
        for (const uint32_t tokens : {4096u, 16384u, 65536u}) {
            for (const uint32_t n_q : {1u, 512u}) {
                test_case c = a_case(tokens - n_q, n_q);
                c.heads = 32;
                c.kv_heads = 8;
                c.page_cells = 2048;
                c.type_k = c.type_v = type;
                time_one(m, e, c, json);
            }
        }
    }
}
