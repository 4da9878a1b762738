// Reads and writes of the I/O threads, and their checks.
#pragma once

#include <memory>
#include <vector>

#include "pager/state.h"

namespace kvp {

// The source of a page's contents, taken under the mutex.
struct source {
    std::vector<extent_ref> extents;
    std::vector<rotation>   rotations;
    const uint32_t * sums = nullptr;  // of the slot's bytes
    uint64_t offset  = 0;
    bool     in_slot = false;
    bool     zero    = false;  // the frame holds zeros already
};

// The result of a transfer, and the reason of a failure.
struct transfer {
    uint64_t reads = 0, bytes = 0, extent_bytes = 0;
    int      rc      = 0;
    bool     damaged = false;  // read without an error, and different from the written bytes
    std::shared_ptr<const shared_file> file;  // NULL: the spill file
    uint64_t offset  = 0;
};

// take_source also takes the pending rotations of the page.
source take_source(kvp_pager & p, page_id id);

// fill makes a frame hold a page, without its rotations. Without the mutex.
void fill(kvp_pager & p, const layer_state & l, uint8_t * data, const source & from, transfer & t);

// sum_extents reads the bytes of extents and notes their checksums in them. Without the mutex.
void sum_extents(kvp_pager & p, const layer_state & l, std::vector<extent_ref> & extents, transfer & t);

// write_page writes the parts of a page that its slot lacks. No thread can change the page
// meanwhile. write_page releases and takes the lock, and makes an error sticky.
int write_page(kvp_pager & p, page_id id, lock_t & lock);

void fail_read(kvp_pager & p, page_id id, const transfer & t);

}  // namespace kvp
