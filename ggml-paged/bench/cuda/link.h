// How fast the link to the device is, by copies of one size.
#pragma once

#include <cstddef>

enum class host_memory { pageable, page_locked };

// copy_rate is the best rate of copies of so many bytes from the host to the device, in
// bytes per second; 0 where memory or a copy fails.
double copy_rate(host_memory kind, size_t bytes);
