#include "cases.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "paged.h"
#include "rows.h"
#include "stock.h"

namespace {

// Weights that are spread over many cells make long sums, where rounding shows; their mean
// grows with that of V. Four query heads per KV head, one query.
constexpr float    QUERY_DEVIATION = 1.0f;
constexpr uint32_t HEADS           = 4 * KV_HEADS;

double largest_error(const std::vector<std::vector<double>> & want, const float * out) {
    double worst = 0;
    for (const std::vector<double> & head : want) {
        for (double x : head) {
            const double error = std::fabs(*out++ - x);
            worst = error <= worst ? worst : error;  // keeps NaN
        }
    }
    return worst;
}

figures run_case(const options & o, int type, uint32_t tokens, double mean, team & threads) {
    const float scale = 1.0f / std::sqrt(float(HEAD_DIM));
    const rows_pool k(type, HEAD_DIM, 0.0f, 1), v(type, HEAD_DIM, float(mean), 2);
    const cache_rows rows = {k, v, KV_HEADS};
    const std::vector<float> q = random_queries(size_t(HEADS) * HEAD_DIM, QUERY_DEVIATION, 3);
    std::vector<std::vector<double>> want;
    for (uint32_t head = 0; head < HEADS; head++) {
        want.push_back(attention_f64(rows, 0, head * KV_HEADS / HEADS, tokens, q.data() + head * HEAD_DIM, HEAD_DIM, scale));
    }

    paged_attention paged({1, tokens, 1, HEADS, KV_HEADS, HEAD_DIM, type, scale, o.page_cells, 0, o.io_threads, "", false, 0}, rows, q,
                          threads);
    paged.begin();
    paged.run();
    figures f;
    f["type"]        = kvp_type_name(type);
    f["tokens"]      = tokens;
    f["mean_of_v"]   = mean;
    f["max_v"]       = v.largest();
    f["paged_error"] = largest_error(want, paged.out(0));
    const stock_shape shape = {1, tokens, 1, HEADS, KV_HEADS, HEAD_DIM, type, scale};
    if (const std::unique_ptr<stock_attention> stock = make_stock(shape, threads.size())) {
        fill_stock(*stock, rows, shape);
        stock->set_q(q.data());
        threads.run_alone([&] { stock->run(); });
        f["stock_error"] = largest_error(want, stock->out(0));
    }
    return f;
}

}  // namespace

figures bench_accuracy(const options & o, team & threads) {
    std::printf("\nLargest errors against f64, decode, all heads\n%-5s %7s %9s  %10s %10s\n", "type", "tokens", "mean of V", "paged", "stock");
    figures all = figures::array();
    for (int type : o.types) {
        for (double mean : {0.0, 0.4, 1.0}) {
            for (uint32_t tokens : o.tokens) {
                const figures f = run_case(o, type, tokens, mean, threads);
                std::printf("%-5s %7u %9.1f  %10.2g", kvp_type_name(type), tokens, mean, f["paged_error"].get<double>());
                if (f.contains("stock_error")) {
                    std::printf(" %10.2g", f["stock_error"].get<double>());
                }
                std::printf("\n");
                std::fflush(stdout);
                all.push_back(f);
            }
        }
    }
    return all;
}
