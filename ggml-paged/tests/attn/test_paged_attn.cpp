// test_paged_attn: backends against f64 over an all-pairs design of shapes, masks, types,
// budgets and options.
//
//   test_paged_attn [--backend cpu|emulated|tensor|hybrid|cuda] [--quick] [--long] [--seed N]
//                   [--filter TEXT] [--work-max GFLOP] [--spill DIR|none] [--verbose]
//   test_paged_attn --probe-spill DIR
//
// Without --backend all that were built in are tested, except those that this machine
// cannot run: "cuda" needs a device, "emulated", "tensor" and "hybrid" run the same kernels
// without.
//
// The design covers all pairs of values that are possible in a case of no more work than
// the backend's own limit (--quick, the default), another number (--work-max), or any
// (--long).
//
// Each case is computed twice, the second time with another budget and number of threads;
// both must give the same bits where the backend promises that. Pages spill to a file in
// DIR. With --spill none the budget is always a full one, and a line says of how many cases
// it was not to be. So it is without --spill where the working directory can have no such
// file. --probe-spill says whether a folder can have one.
//
// Prints for each backend the largest error for each value of each parameter, in units of
// max|V|, and the largest relative error of a row: the root of its summed squares over that
// of the exact row's. The last line says how many cases passed. Exits with 1 if anything
// failed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend.h"
#include "case.h"
#include "reference.h"

namespace {

struct options {
    const test_backend * backend = nullptr;  // NULL: all
    bool        verbose  = false;
    uint64_t    seed     = 1;
    double      work_max = 0;  // GFLOP of a case; 0: the backend's own limit
    std::string filter;
    std::string spill, probe;  // empty: not given

    const char * spill_dir() const { return spill == "none" ? nullptr : spill.c_str(); }
};

// Multiplications that the reference may take per case; rows are sampled beyond.
constexpr double REFERENCE_WORK = 1.5e8;

void check(int result) {
    if (result < 0) {
        throw std::runtime_error(kvp_last_error());
    }
}

struct pager_holder {
    kvp_pager * p = nullptr;
    ~pager_holder() { kvp_pager_free(p); }
};

uint64_t frames_of(const options & o, const test_case & c, int budget, uint32_t n_cells) {
    const uint64_t pages = (n_cells + c.page_cells - 1) / c.page_cells;
    return !o.spill_dir() ? pages : budget == 0 ? 1 : budget == 1 ? std::max<uint64_t>(1, pages / 10) : pages;
}

// page_bytes_of is the size of a frame, which a pager tells only once it has its budget.
uint64_t page_bytes_of(const test_case & c) {
    const uint64_t k = c.page_cells * c.kv_heads * kvp_row_bytes(c.type_k, c.dk);
    const uint64_t v = c.page_cells * c.kv_heads * kvp_row_bytes(c.type_v, c.dv);
    return (k + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN + (v + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
}

void make_pager(const options & o, const test_case & c, const case_inputs & in, int budget, pager_holder & out) {
    kvp_config config{};
    config.page_cells = c.page_cells;
    config.ram_bytes  = frames_of(o, c, budget, in.n_cells) * page_bytes_of(c);
    config.spill_dir  = o.spill_dir();
    if (o.backend->prepare) {
        o.backend->prepare(&config);
    }
    check(kvp_pager_create(&config, &out.p));
    uint32_t layer;
    check(kvp_layer_add(out.p, &in.layer, &layer));
    check(kvp_pager_start(out.p));
    check(kvp_reserve(out.p, in.layer.group, (in.n_cells + c.page_cells - 1) / c.page_cells));
    std::vector<uint32_t> cells(in.n_cells);
    for (uint32_t i = 0; i < in.n_cells; i++) {
        cells[i] = i;
    }
    check(kvp_rows_write(out.p, layer, cells.data(), in.n_cells, in.k.data(), in.v.data()));
}

// check_stored compares the stored rows of the batch with the quantizers' result, and puts
// that result into the inputs for the reference.
void check_stored(const test_case & c, kvp_pager * pager, case_inputs & in) {
    const size_t row_k = kvp_layer_row_k(pager, 0), row_v = kvp_layer_row_v(pager, 0);
    std::vector<uint8_t> k(c.n_q * row_k), v(c.n_q * row_v);
    check(kvp_rows_read(pager, 0, in.q_cell.data(), c.n_q, k.data(), v.data()));
    for (uint32_t i = 0; i < c.n_q; i++) {
        uint8_t * want_k = &in.k[in.q_cell[i] * row_k];
        uint8_t * want_v = &in.v[in.q_cell[i] * row_v];
        for (uint32_t h = 0; h < c.kv_heads; h++) {
            kvp_quantize_row(c.type_k, &in.k_new[((size_t) i * c.kv_heads + h) * c.dk], want_k + h * row_k / c.kv_heads, c.dk);
            kvp_quantize_row(c.type_v, &in.v_new[((size_t) i * c.kv_heads + h) * c.dv], want_v + h * row_v / c.kv_heads, c.dv);
        }
        if (std::memcmp(&k[i * row_k], want_k, row_k) != 0 || std::memcmp(&v[i * row_v], want_v, row_v) != 0) {
            throw std::runtime_error("the row of query " + std::to_string(i) + " was not stored as it should be");
        }
    }
}

std::vector<float> compute(const options & o, const test_case & c, case_inputs & in, int budget, uint32_t threads) {
    pager_holder pager;
    make_pager(o, c, in, budget, pager);
    const kvp_batch_desc desc = in.batch_desc();
    kvp_batch * batch;
    kvp_op *    op;
    check(kvp_batch_begin(pager.p, &desc, &batch));
    check(kvp_op_new(batch, &in.params, &op));
    std::vector<float> out((size_t) c.n_q * c.heads * c.dv, NAN);
    kvp_io io{};
    io.q     = {in.q.data(), (int64_t) (c.heads * c.dk * sizeof(float)), (int64_t) (c.dk * sizeof(float))};
    io.k_new = {in.k_new.data(), (int64_t) (c.kv_heads * c.dk * sizeof(float)), (int64_t) (c.dk * sizeof(float))};
    io.v_new = {in.v_new.data(), (int64_t) (c.kv_heads * c.dv * sizeof(float)), (int64_t) (c.dv * sizeof(float))};
    io.sinks = in.sinks.empty() ? nullptr : in.sinks.data();
    io.out   = out.data();
    check(o.backend->forward(op, &io, threads, c.seed + threads));
    const char * message;
    if (kvp_pager_error(pager.p, &message) != 0) {
        throw std::runtime_error(message);
    }
    check_stored(c, pager.p, in);
    return out;
}

// Largest errors: of an element in units of max|V|, and of a row relative to the row.
struct errors {
    double of_max = 0, relative = 0;

    void add(const errors & e) {
        of_max = std::max(of_max, e.of_max);
        relative = std::max(relative, e.relative);
    }
};

double or_infinity(double x) { return std::isnan(x) ? INFINITY : x; }

errors errors_of(const test_case & c, const case_inputs & in, const std::vector<float> & out) {
    const kvp_batch_desc  desc  = in.batch_desc();
    const reference_cells cells = {in.n_cells, in.pos.data(), in.seqs.data(), in.k.data(), in.v.data()};
    const uint64_t rows = (uint64_t) c.n_q * c.heads;
    const double   cost = (double) in.n_cells * (c.dk + c.dv);
    const uint64_t take = std::min<uint64_t>(rows, std::max(6.0, REFERENCE_WORK / cost));
    errors worst;
    for (uint64_t i = 0; i < take; i++) {
        // Spread over all rows, from the first to the last.
        const uint64_t row   = take == 1 ? rows - 1 : i * (rows - 1) / (take - 1);
        const uint32_t query = (uint32_t) (row / c.heads), head = (uint32_t) (row % c.heads);
        const reference_query q = {in.q_pos[query], in.q_seq[query], !in.q_except.empty() && in.q_except[query],
                                   &in.q[(size_t) query * c.heads * c.dk]};
        const std::vector<double> want = reference_row(in.layer, in.params, desc, cells, q, head, in.sinks.empty() ? nullptr : &in.sinks[head]);
        double off = 0, size = 0;
        for (uint32_t d = 0; d < c.dv; d++) {
            const double error = out[row * c.dv + d] - want[d];
            worst.of_max = std::max(worst.of_max, or_infinity(std::fabs(error) / in.v_max));
            off += error * error;
            size += want[d] * want[d];
        }
        if (size > 0) {  // a query may see nothing
            worst.relative = std::max(worst.relative, or_infinity(std::sqrt(off / size)));
        }
    }
    return worst;
}

// run_case returns the errors and throws where anything else is wrong.
errors run_case(const options & o, const test_case & c) {
    case_inputs in = make_inputs(c);
    const std::vector<float> out   = compute(o, c, in, c.budget, c.threads);
    const std::vector<float> again = compute(o, c, in, (c.budget + 1) % 3, c.threads % 3 + 1);
    errors error = errors_of(c, in, out);
    error.add(errors_of(c, in, again));
    if (!(error.of_max <= o.backend->error_max)) {
        throw std::runtime_error("the error is " + std::to_string(error.of_max) + " of max|V|");
    }
    if (o.backend->bits_repeat && std::memcmp(out.data(), again.data(), out.size() * sizeof(float)) != 0) {
        throw std::runtime_error("another budget and number of threads give other bits");
    }
    return error;
}

struct tally {
    size_t cases = 0, failed = 0, without_spill = 0;
    errors worst;

    void add(bool ok, const errors & error) {
        cases++;
        failed += !ok;
        worst.add(error);
    }
};

void print_table(const case_design & d, const std::vector<std::vector<tally>> & table) {
    std::printf("%-8s %-8s %6s %7s  %s\n", "", "", "cases", "failed", "largest error / max|V|");
    for (size_t p = 0; p < d.parameters.size(); p++) {
        for (size_t v = 0; v < d.parameters[p].values.size(); v++) {
            const tally & t = table[p][v];
            std::printf("%-8s %-8s %6zu %7zu  %.1e\n", v == 0 ? d.parameters[p].name.c_str() : "",
                        d.parameters[p].values[v].c_str(), t.cases, t.failed, t.worst.of_max);
        }
    }
}

// run_one runs a case unless it is filtered out or too large; failures are printed.
bool run_one(const options & o, const test_case & c, tally & total, errors & error) {
    const std::string    name  = c.name();
    const kvp_layer_desc layer = {0, c.tokens + c.n_q, c.kv_heads, c.dk, c.dv, c.type_k, c.type_v};
    if (name.find(o.filter) == std::string::npos || o.backend->refuses(&layer, c.heads)) {
        return false;
    }
    const auto begin = std::chrono::steady_clock::now();
    bool ok = true;
    error = {};
    try {
        error = run_case(o, c);
    } catch (const std::exception & e) {
        ok = false;
        std::printf("FAILED %s: %s\n", name.c_str(), e.what());
    }
    if (o.verbose) {
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
        std::printf("%s: %.1e, %.0f ms\n", name.c_str(), error.of_max, ms);
    }
    total.add(ok, error);
    // One of the two budgets of a case is always less than a full one.
    total.without_spill += !o.spill_dir();
    return true;
}

options parse(int argc, char ** argv) {
    options o;
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        if (a == "--quick") {
            o.work_max = 0;
            continue;
        }
        if (a == "--long") {
            o.work_max = INFINITY;
            continue;
        }
        if (a == "--verbose") {
            o.verbose = true;
            continue;
        }
        const char * value = i + 1 < argc ? argv[++i] : nullptr;
        if (!value) {
            throw std::invalid_argument(a + " is no option, or needs a value.");
        }
        if (a == "--backend") {
            o.backend = test_backend_find(value);
            if (!o.backend) {
                throw std::invalid_argument(std::string("The backend ") + value + " is not built in.");
            }
        } else if (a == "--seed") {
            o.seed = std::strtoull(value, nullptr, 10);
        } else if (a == "--filter") {
            o.filter = value;
        } else if (a == "--work-max") {
            o.work_max = std::atof(value);
        } else if (a == "--spill") {
            o.spill = value;
        } else if (a == "--probe-spill") {
            o.probe = value;
        } else {
            throw std::invalid_argument(a + " is no option.");
        }
    }
    return o;
}

// probe_spill asks the pager itself, so that the answer is the one that cases would get.
void probe_spill(const char * dir) {
    kvp_config config{};
    config.page_cells = 256;
    config.ram_bytes  = 1 << 20;
    config.spill_dir  = dir;
    pager_holder pager;
    check(kvp_pager_create(&config, &pager.p));
}

// choose_spill is the working directory, or none where that can have no spill file.
std::string choose_spill() try {
    probe_spill(".");
    return ".";
} catch (const std::exception & e) {
    std::printf("Pages do not spill: %s\n", e.what());
    return "none";
}

struct result {
    const test_backend * backend;
    tally                total;
    size_t               missing;  // pairs of values that the design does not cover

    bool passed() const { return total.cases > 0 && total.failed == 0 && missing == 0; }
};

// run_backend runs the cases of o.backend and prints the results.
result run_backend(const options & o) {
    const case_design d = design_cases((o.work_max > 0 ? o.work_max : o.backend->work_max) * 1e9, o.seed);
    std::vector<std::vector<tally>> table;
    for (const parameter & p : d.parameters) {
        table.emplace_back(p.values.size());
    }
    tally  total;
    size_t skipped = 0;
    for (size_t i = 0; i < d.cases.size(); i++) {
        const size_t failed = total.failed;
        errors error;
        if (!run_one(o, d.cases[i], total, error)) {
            skipped++;
            continue;
        }
        for (size_t p = 0; p < table.size(); p++) {
            table[p][d.rows[i][p]].add(total.failed == failed, error);
        }
    }
    print_table(d, table);
    if (total.without_spill > 0) {
        std::printf("%zu cases ran with a full budget only: without a spill file pages cannot leave memory\n", total.without_spill);
    }
    std::printf("%s (%s), seed %llu: %zu cases, %zu failed, %zu skipped, %zu pairs of values not covered by the design; largest error %.1e of max|V|, relative %.5f %%\n\n",
                o.backend->name, kvp_cpu_isa(), (unsigned long long) o.seed, total.cases, total.failed, skipped, d.missing,
                total.worst.of_max, 100 * total.worst.relative);
    std::fflush(stdout);
    return {o.backend, total, d.missing};
}

// run_all runs one backend, or all that this machine can run.
std::vector<result> run_all(options o) {
    const test_backend * const only = o.backend;
    std::vector<result>  results;
    for (const test_backend * backend : only ? std::vector<const test_backend *>{only} : test_backends()) {
        const char * why = backend->missing ? backend->missing() : nullptr;
        if (why && only) {
            throw std::runtime_error(why);
        }
        if (why) {
            std::printf("%s: not tested. %s\n\n", backend->name, why);
            continue;
        }
        o.backend = backend;
        results.push_back(run_backend(o));
    }
    return results;
}

// print_sum says how many cases passed, in all and on each backend.
void print_sum(const std::vector<result> & results) {
    size_t cases = 0, passed = 0, missing = 0;
    std::string each;
    for (const result & r : results) {
        const size_t n = r.total.cases - r.total.failed;
        cases   += r.total.cases;
        passed  += n;
        missing += r.missing;
        each += (each.empty() ? "" : ", ") + std::to_string(n) + " on " + r.backend->name;
    }
    if (missing > 0) {
        std::printf("FAILED: the design leaves out %zu pairs of values\n", missing);
    }
    std::printf("%zu of %zu tests passed: %s.\n", passed, cases, each.c_str());
}

} // namespace

int main(int argc, char ** argv) try {
    options o = parse(argc, argv);
    if (!o.probe.empty()) {
        probe_spill(o.probe.c_str());
        return 0;
    }
    if (o.spill.empty()) {
        o.spill = choose_spill();
    }
    const std::vector<result> results = run_all(o);
    print_sum(results);
    return !std::all_of(results.begin(), results.end(), [](const result & r) { return r.passed(); });
} catch (const std::exception & e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
}
