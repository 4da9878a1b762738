// Processors that this process may use.
#pragma once

#include <cstdint>
#include <vector>

// processors lists them; it is empty where that cannot be told.
std::vector<uint32_t> processors();

// stay_on_processor keeps the calling thread on the index-th of them, if there are as many
// as wanted. Elsewhere, and where that is not possible, it does nothing.
void stay_on_processor(uint32_t index, uint32_t wanted);
