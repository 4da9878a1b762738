// The all-pairs design of test_paged_attn once more, inside ggml and beside its own
// attention: how far both are off, for each value of each parameter.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "checks.h"

namespace {

struct tally {
    size_t      cases = 0;
    both_errors worst = {0, 0};

    void add(const both_errors & e) {
        cases++;
        worst.paged = std::max(worst.paged, e.paged);
        worst.stock = std::max(worst.stock, e.stock);
    }
};

using tally_table = std::vector<std::vector<tally>>;

void print_table(const case_design & d, const tally_table & table) {
    std::printf("%-8s %-8s %6s  %-9s %-9s largest error / max|V|\n", "", "", "cases", "paged", "stock");
    for (size_t p = 0; p < d.parameters.size(); p++) {
        for (size_t v = 0; v < d.parameters[p].values.size(); v++) {
            const tally & t = table[p][v];
            std::printf("%-8s %-8s %6zu  %-9.1e %-9.1e\n", v == 0 ? d.parameters[p].name.c_str() : "",
                        d.parameters[p].values[v].c_str(), t.cases, t.worst.paged, t.worst.stock);
        }
    }
}

}  // namespace

size_t check_pairs(const modules & m, double flop_max) {
    const case_design d = design_cases(flop_max, 1);
    tally_table table;
    for (const parameter & p : d.parameters) {
        table.emplace_back(p.values.size());
    }
    size_t failed = 0;
    for (size_t i = 0; i < d.cases.size(); i++) {
        both_errors errors;
        try {
            errors = errors_of_both(m, d.cases[i]);
        } catch (const std::exception & e) {
            failed++;
            std::printf("FAILED %s: %s\n", d.cases[i].name().c_str(), e.what());
            continue;
        }
        for (size_t p = 0; p < table.size(); p++) {
            table[p][d.rows[i][p]].add(errors);
        }
    }
    print_table(d, table);
    std::printf("%s, pairs of values beside stock attention: %zu cases, %zu failed\n", ggml_backend_reg_name(m.computing().reg), d.cases.size(), failed);
    return failed + d.missing;
}
