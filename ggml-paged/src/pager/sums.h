// Checksums of a page in the spill file: one per block, so that writing a part of a page
// renews few of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvp {

constexpr size_t SUM_BLOCK = 64 * 1024;

inline size_t sum_count(size_t page_bytes) {
    return (page_bytes + SUM_BLOCK - 1) / SUM_BLOCK;
}

// renew_sums sums the blocks that bytes [from, to) of a page are in.
void renew_sums(uint32_t * sums, const uint8_t * page, size_t page_bytes, size_t from, size_t to);

bool sums_match(const uint32_t * sums, const uint8_t * page, size_t page_bytes);

}  // namespace kvp
