// Whole reads and writes at an offset.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvp {

// read_full and write_full go on after short transfers and interruptions. 0 or a negative
// errno; a file that ends too early is -EIO.
int read_full(int fd, void * data, size_t bytes, uint64_t offset);
int write_full(int fd, const void * data, size_t bytes, uint64_t offset);

// read_bounced reads through an aligned buffer, for descriptors that insist on alignment.
int read_bounced(int fd, void * data, size_t bytes, uint64_t offset);

}  // namespace kvp
