// The lanes as a discrete-event simulation: the cost of a plan if the rates are true. The
// simulation is independent of the planner's own model.
#pragma once

#include <cstdint>
#include <vector>

#include "hybrid/hybrid.h"

struct simulated {
    double total;   // ns
    double cold;    // ns until the last cold page is attended
};

simulated simulate(const std::vector<kvp::plan_step> & steps, const kvp::lane_rates & rates,
                   uint32_t slots, uint32_t workers, uint32_t rows, uint32_t dv);
