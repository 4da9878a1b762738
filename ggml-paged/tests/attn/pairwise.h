// All-pairs test design: rows of values such that any two values of two different
// parameters occur together in some row, with far fewer rows than all combinations.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

// A row has one value index per parameter, or -1 where it is not chosen yet.
using design_row = std::vector<int>;

// allowed judges a row that may be partly chosen: false only where no completion is valid.
using row_filter = std::function<bool(const design_row &)>;

// all_pairs covers each pair that is allowed at all, greedily.
std::vector<design_row> all_pairs(const std::vector<int> & values, const row_filter & allowed, uint64_t seed);

// missing_pairs counts the allowed pairs that no row has.
size_t missing_pairs(const std::vector<int> & values, const row_filter & allowed, const std::vector<design_row> & rows);
