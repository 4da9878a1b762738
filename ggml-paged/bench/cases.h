// The three parts of the benchmark. Each prints its figures while it runs and returns them
// for the JSON file. They throw std::runtime_error with a sentence.
#pragma once

#include <nlohmann/json.hpp>

#include "options.h"
#include "team.h"

using figures = nlohmann::ordered_json;

// Heads of K and V and their size in most models of 7 to 70 billion parameters.
constexpr uint32_t KV_HEADS = 8;
constexpr uint32_t HEAD_DIM = 128;

// bench_resident: K and V in memory, paged beside stock, alternating.
figures bench_resident(const options & o, team & threads);

// bench_spill: K and V of four times the memory, beside resident ones and the disk.
figures bench_spill(const options & o, team & threads);

// bench_accuracy: the largest errors against f64, for V of different means.
figures bench_accuracy(const options & o, team & threads);
