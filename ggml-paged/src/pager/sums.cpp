#include "pager/sums.h"

#include <algorithm>

#include "pager/crc32c.h"

namespace kvp {

namespace {

uint32_t sum_block(const uint8_t * page, size_t page_bytes, size_t block) {
    const size_t from = block * SUM_BLOCK;
    return crc32c(page + from, std::min(SUM_BLOCK, page_bytes - from));
}

}  // namespace

void renew_sums(uint32_t * sums, const uint8_t * page, size_t page_bytes, size_t from, size_t to) {
    for (size_t block = from / SUM_BLOCK; block * SUM_BLOCK < to; block++) {
        sums[block] = sum_block(page, page_bytes, block);
    }
}

bool sums_match(const uint32_t * sums, const uint8_t * page, size_t page_bytes) {
    for (size_t block = 0; block < sum_count(page_bytes); block++) {
        if (sums[block] != sum_block(page, page_bytes, block)) {
            return false;
        }
    }
    return true;
}

}  // namespace kvp
