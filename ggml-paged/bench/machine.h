// The machine that the figures are from.
#pragma once

#include <cstdint>
#include <string>

#include "team.h"

std::string cpu_name();

// l3_bytes is the largest cache that Linux tells of; 0 where it tells of none.
uint64_t l3_bytes();

// load_average is how many threads wanted to run in the last minute; 0 where unknown.
double load_average();

// memory_read_rate is how fast the team reads memory in sequence, in bytes per second: the
// upper limit of attention over resident K and V.
double memory_read_rate(team & threads);
