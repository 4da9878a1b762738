#include "pairwise.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

namespace {

constexpr int CANDIDATES = 12;  // rows that are tried for each one that is taken

using pair_key = std::tuple<int, int, int, int>;  // parameter, value, parameter, value

pair_key key_of(int p, int a, int q, int b) {
    return p < q ? pair_key(p, a, q, b) : pair_key(q, b, p, a);
}

std::set<pair_key> pairs_of(const std::vector<int> & values, const row_filter & allowed) {
    std::set<pair_key> pairs;
    const int n = (int) values.size();
    for (int p = 0; p < n; p++) {
        for (int q = p + 1; q < n; q++) {
            for (int a = 0; a < values[p]; a++) {
                for (int b = 0; b < values[q]; b++) {
                    design_row row(n, -1);
                    row[p] = a;
                    row[q] = b;
                    if (allowed(row)) {
                        pairs.insert(key_of(p, a, q, b));
                    }
                }
            }
        }
    }
    return pairs;
}

// gain counts the open pairs that value a of parameter p makes with the rest of the row.
int gain(const std::set<pair_key> & open, const design_row & row, int p, int a) {
    int n = 0;
    for (int q = 0; q < (int) row.size(); q++) {
        n += q != p && row[q] >= 0 && open.count(key_of(p, a, q, row[q]));
    }
    return n;
}

// complete fills a row, parameter by parameter in random order, with the values that cover
// most. Empty where the choices made before leave no valid value.
design_row complete(const std::vector<int> & values, const row_filter & allowed, const std::set<pair_key> & open,
                    design_row row, std::mt19937_64 & random) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int p : order) {
        if (row[p] >= 0) {
            continue;
        }
        std::vector<int> choice(values[p]);
        std::iota(choice.begin(), choice.end(), 0);
        std::shuffle(choice.begin(), choice.end(), random);
        int best = -1, best_gain = -1;
        for (int a : choice) {
            design_row tried = row;
            tried[p] = a;
            const int g = allowed(tried) ? gain(open, row, p, a) : -1;
            if (g > best_gain) {
                best      = a;
                best_gain = g;
            }
        }
        if (best < 0) {
            return {};
        }
        row[p] = best;
    }
    return row;
}

void close(std::set<pair_key> & open, const design_row & row) {
    for (int p = 0; p < (int) row.size(); p++) {
        for (int q = p + 1; q < (int) row.size(); q++) {
            open.erase(key_of(p, row[p], q, row[q]));
        }
    }
}

int covered(const std::set<pair_key> & open, const design_row & row) {
    int n = 0;
    for (int p = 0; p < (int) row.size(); p++) {
        n += gain(open, row, p, row[p]);
    }
    return n / 2;
}

} // namespace

std::vector<design_row> all_pairs(const std::vector<int> & values, const row_filter & allowed, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::set<pair_key> open = pairs_of(values, allowed);
    std::vector<design_row> rows;
    while (!open.empty()) {
        const auto [p, a, q, b] = *open.begin();
        design_row start(values.size(), -1), best;
        start[p] = a;
        start[q] = b;
        for (int i = 0; i < CANDIDATES; i++) {
            design_row row = complete(values, allowed, open, start, random);
            if (!row.empty() && (best.empty() || covered(open, row) > covered(open, best))) {
                best = row;
            }
        }
        if (best.empty()) {
            open.erase(open.begin());  // no row can have it; missing_pairs will tell
            continue;
        }
        close(open, best);
        rows.push_back(best);
    }
    return rows;
}

size_t missing_pairs(const std::vector<int> & values, const row_filter & allowed, const std::vector<design_row> & rows) {
    std::set<pair_key> open = pairs_of(values, allowed);
    for (const design_row & row : rows) {
        close(open, row);
    }
    return open.size();
}
