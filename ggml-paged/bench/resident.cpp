#include "cases.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>

#include "machine.h"
#include "paged.h"
#include "rows.h"
#include "stock.h"
#include "timing.h"

namespace {

// A case that fits a cache would be timed there, while in a model other layers come
// between: small layers are made many, up to a multiple of the largest cache.
constexpr uint64_t CACHES_COVERED    = 8;
constexpr uint64_t KV_BYTES_MIN      = uint64_t(256) << 20;
// Work of one repetition; beyond it prefill is measured on fewer KV heads, of which it is
// independent, so that stock attention ends in tens of seconds.
constexpr double   WORK_MAX_FLOP     = 60e9;
constexpr uint32_t PREFILL_KV_HEADS_MIN = 2;
constexpr double   CASE_SECONDS      = 6, QUICK_CASE_SECONDS = 2;
constexpr int      REPETITIONS_MIN   = 3, REPETITIONS_MAX = 15;

// With queries of this deviation tens of cells have most of the weight, at any length: the
// result is far from zero, and wrong code cannot pass for a small error.
constexpr float    QUERY_DEVIATION   = 3.0f;
constexpr double   PAGED_BOUND       = 1e-4;  // of max |V|
constexpr double   STOCK_BOUND       = 2e-2;  // f16 sums, and with q8_0 queries of 8 bits

struct resident_case {
    uint32_t tokens, n_q, gqa, kv_heads, layers;
    int      type;

    uint32_t heads() const { return kv_heads * gqa; }
    double   layer_bytes() const { return 2.0 * tokens * kv_heads * double(kvp_row_bytes(type, HEAD_DIM)); }
    // Two products of HEAD_DIM multiply-adds per query, head and cell that it sees.
    double   layer_flop() const {
        const double seen = double(n_q) * (tokens - n_q) + n_q * (n_q + 1.0) / 2;
        return 4.0 * HEAD_DIM * heads() * seen;
    }
};

resident_case case_for(uint32_t tokens, uint32_t n_q, uint32_t gqa, int type) {
    resident_case c = {tokens, n_q, gqa, KV_HEADS, 1, type};
    while (n_q > 1 && c.kv_heads > PREFILL_KV_HEADS_MIN && c.layer_flop() > WORK_MAX_FLOP) {
        c.kv_heads /= 2;
    }
    const double wanted = double(std::max(KV_BYTES_MIN, CACHES_COVERED * l3_bytes()));
    while (c.layers * c.layer_bytes() < wanted && (c.layers + 1) * c.layer_flop() <= WORK_MAX_FLOP) {
        c.layers++;
    }
    return c;
}

// sample_error is the largest error over a few heads and queries, relative to max |V|.
double sample_error(const resident_case & c, const cache_rows & rows, const std::vector<float> & q, double scale,
                    const std::function<const float *(uint32_t)> & out) {
    double worst = 0;
    for (uint32_t sample = 0; sample < 6; sample++) {
        const uint32_t layer = sample % 2 ? c.layers - 1 : 0;
        const uint32_t query = sample < 3 ? c.n_q - 1 : c.n_q / 2;
        const uint32_t head  = sample * 37 % c.heads();
        const size_t   at    = (size_t(query) * c.heads() + head) * HEAD_DIM;
        const std::vector<double> want = attention_f64(rows, layer, head / c.gqa, c.tokens - c.n_q + query + 1,
                                                       q.data() + at, HEAD_DIM, scale);
        for (uint32_t d = 0; d < HEAD_DIM; d++) {
            const double error = std::fabs(out(layer)[at + d] - want[d]);
            worst = error <= worst ? worst : error;  // keeps NaN
        }
    }
    return worst / rows.v.largest();
}

void check_error(const char * side, double error, double bound) {
    if (!(error <= bound)) {
        char text[160];
        std::snprintf(text, sizeof(text), "The %s result is wrong by %.3g of max |V|, more than %.3g; nothing was timed.",
                      side, error, bound);
        throw std::runtime_error(text);
    }
}

struct timings {
    std::vector<double> paged, stock;  // seconds of a layer
};

timings alternate(const resident_case & c, paged_attention & paged, stock_attention * stock, team & threads, double budget_seconds) {
    timings t;
    const auto run_paged = [&] {
        paged.begin();
        const stopwatch watch;
        paged.run();
        t.paged.push_back(watch.seconds() / c.layers);
    };
    const auto run_stock = [&] {
        if (stock) {
            const stopwatch watch;
            threads.run_alone([&] { stock->run(); });
            t.stock.push_back(watch.seconds() / c.layers);
        }
    };
    const stopwatch total;
    for (int i = 0; i < REPETITIONS_MAX && (i < REPETITIONS_MIN || total.seconds() < budget_seconds); i++) {
        // Who is first changes, so that neither always finds the other's leavings.
        if (i % 2) {
            run_stock();
            run_paged();
        } else {
            run_paged();
            run_stock();
        }
    }
    return t;
}

figures describe(const resident_case & c, const timings & t, double paged_error, double stock_error) {
    figures f;
    f["type"]     = kvp_type_name(c.type);
    f["tokens"]   = c.tokens;
    f["n_q"]      = c.n_q;
    f["heads"]    = c.heads();
    f["kv_heads"] = c.kv_heads;
    f["gqa"]      = c.gqa;
    f["head_dim"] = HEAD_DIM;
    f["layers"]   = c.layers;
    f["repetitions"] = t.paged.size();
    const auto side = [&](const std::string & name, const std::vector<double> & seconds, double error) {
        if (seconds.empty()) {
            return;
        }
        const double layer = median(seconds);
        f[name + "_error_of_max_v"]  = error;
        f[name + "_ms"]              = layer * 1e3;
        f[name + "_gb_per_s"]        = c.layer_bytes() / layer * 1e-9;
        f[name + "_gflop_per_s"]     = c.layer_flop() / layer * 1e-9;
    };
    side("paged", t.paged, paged_error);
    side("stock", t.stock, stock_error);
    if (!t.stock.empty()) {
        std::vector<double> ratios;
        for (size_t i = 0; i < t.stock.size(); i++) {
            ratios.push_back(t.stock[i] / t.paged[i]);
        }
        f["ratio"]     = median(t.stock) / median(t.paged);
        f["ratio_min"] = *std::min_element(ratios.begin(), ratios.end());
        f["ratio_max"] = *std::max_element(ratios.begin(), ratios.end());
    }
    return f;
}

void print(const figures & f) {
    std::printf("%-5s %7u %4u %4u %3u %3u  %10.3f %7.2f %8.1f", f["type"].get<std::string>().c_str(), f["tokens"].get<uint32_t>(),
                f["n_q"].get<uint32_t>(), f["gqa"].get<uint32_t>(), f["kv_heads"].get<uint32_t>(), f["layers"].get<uint32_t>(),
                f["paged_ms"].get<double>(), f["paged_gb_per_s"].get<double>(), f["paged_gflop_per_s"].get<double>());
    if (f.contains("ratio")) {
        std::printf("  %10.3f %7.2f %8.1f  %6.2f (%.2f..%.2f)", f["stock_ms"].get<double>(), f["stock_gb_per_s"].get<double>(),
                    f["stock_gflop_per_s"].get<double>(), f["ratio"].get<double>(), f["ratio_min"].get<double>(),
                    f["ratio_max"].get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
}

figures run_case(const options & o, const resident_case & c, const rows_pool & k, const rows_pool & v, team & threads) {
    const float scale = 1.0f / std::sqrt(float(HEAD_DIM));
    const cache_rows rows = {k, v, c.kv_heads};
    const std::vector<float> q = random_queries(size_t(c.n_q) * c.heads() * HEAD_DIM, QUERY_DEVIATION, 3);
    const paged_shape shape = {c.layers, c.tokens, c.n_q, c.heads(), c.kv_heads, HEAD_DIM, c.type, scale,
                               o.page_cells, 0, o.io_threads, "", false, 0};
    paged_attention paged(shape, rows, q, threads);
    paged.begin();
    paged.run();
    const double paged_error = sample_error(c, rows, q, scale, [&](uint32_t layer) { return paged.out(layer); });
    check_error("paged", paged_error, PAGED_BOUND);

    const stock_shape same = {c.layers, c.tokens, c.n_q, c.heads(), c.kv_heads, HEAD_DIM, c.type, scale};
    const std::unique_ptr<stock_attention> stock = make_stock(same, threads.size());
    double stock_error = 0;
    if (stock) {
        fill_stock(*stock, rows, same);
        stock->set_q(q.data());
        threads.run_alone([&] { stock->run(); });
        stock_error = sample_error(c, rows, q, scale, [&](uint32_t layer) { return stock->out(layer); });
        check_error("stock", stock_error, STOCK_BOUND);
    }
    return describe(c, alternate(c, paged, stock.get(), threads, o.quick ? QUICK_CASE_SECONDS : CASE_SECONDS), paged_error, stock_error);
}

}  // namespace

figures bench_resident(const options & o, team & threads) {
    std::printf("\nResident K and V; times are of one layer, GB/s count each row of K and V once\n");
    std::printf("%-5s %7s %4s %4s %3s %3s  %10s %7s %8s  %10s %7s %8s  %s\n", "type", "tokens", "n_q", "gqa", "kvh", "lay", "paged ms",
                "GB/s", "GFLOP/s", "stock ms", "GB/s", "GFLOP/s", "stock/paged (min..max)");
    figures all = figures::array();
    for (int type : o.types) {
        const rows_pool k(type, HEAD_DIM, 0.0f, 1), v(type, HEAD_DIM, 0.0f, 2);
        for (uint32_t n_q : o.queries) {
            for (uint32_t tokens : o.tokens) {
                for (uint32_t gqa : o.gqa) {
                    if (tokens >= n_q) {
                        all.push_back(run_case(o, case_for(tokens, n_q, gqa, type), k, v, threads));
                        print(all.back());
                    }
                }
            }
        }
    }
    return all;
}
