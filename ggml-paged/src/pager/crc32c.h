// CRC-32C (Castagnoli): the checksum of bytes on a disk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvp {

// crc32c is the checksum of some bytes, or continues the checksum of earlier bytes.
uint32_t crc32c(const void * data, size_t bytes, uint32_t before = 0);

// crc32c_portable gives the same on processors without an instruction for it.
uint32_t crc32c_portable(const void * data, size_t bytes, uint32_t before = 0);

}  // namespace kvp
