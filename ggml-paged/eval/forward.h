// Computes a case with one of the backends.
#pragma once

#include <string>
#include <vector>

#include "case.h"

// forward returns f32 [n_q][heads][dv]. Pages that do not fit in the case's memory go to
// an unnamed file in the directory spill. Throws bad_input where the backend is unknown,
// not built in, or cannot compute such a case, std::runtime_error where it fails.
std::vector<float> forward(const eval_case & c, uint32_t threads, const std::string & spill);
