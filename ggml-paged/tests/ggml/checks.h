// The checks of test_ggml_paged. Each check throws std::runtime_error that names the
// fault.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "case.h"
#include "engine.h"

// Largest error of the op against f64, in units of max|V|. A device may have tensor cores.
constexpr double ERROR_MAX_CPU = 1e-4, ERROR_MAX_DEVICE = 1e-3;
inline double error_max(const modules & m) { return m.device.reg ? ERROR_MAX_DEVICE : ERROR_MAX_CPU; }

// cases.cpp
const std::vector<test_case> & cases_beside_stock();
test_case a_case(uint32_t tokens, uint32_t n_q);  // an ordinary one

// beside_stock.cpp
struct both_errors {
    double paged, stock;  // in units of max|V|
};
both_errors errors_of_both(const modules & m, const test_case & c);  // throws if ours is too large
both_errors check_beside_stock(const modules & m, const test_case & c);
void check_threads_give_the_same_bits(const modules & m);
void check_rows_of_one_projection(const modules & m);
void check_rows_that_are_stored_already(const modules & m);
void check_steps_of_one_sequence(const modules & m);
void check_refused_ops_run_on_the_cpu(const modules & m);

// pairs.cpp: prints both errors over all pairs of values in cases of no more than flop_max
// multiplications and additions, and returns how many cases failed.
size_t check_pairs(const modules & m, double flop_max);

// reservation.cpp
void check_a_reservation_computes_nothing(const modules & m);
void check_a_reservation_is_enough(const modules & m);
void check_a_reservation_counts_staging_memory(const modules & m);

// faults.cpp
void check_a_failed_read_stays(const modules & m);

// time_beside_stock prints times of both sides, and writes them to json, a line of JSON
// each, unless it is NULL. Times are of the whole graph: rows are stored, then attended.
void time_beside_stock(const modules & m, std::FILE * json);
