// What the I/O threads read and write, and the checks of it.
#pragma once

#include <memory>
#include <vector>

#include "pager/state.h"

namespace kvp {

// Where the contents of a page come from, taken while the mutex is held.
struct source {
    std::vector<extent_ref> extents;
    std::vector<rotation>   rotations;
    const uint32_t * sums = nullptr;  // of what is in the slot
    uint64_t offset  = 0;
    bool     in_slot = false;
    bool     zero    = false;  // the frame holds zeros already
};

// What was transferred, and why that failed.
struct transfer {
    uint64_t reads = 0, bytes = 0, extent_bytes = 0;
    int      rc      = 0;
    bool     damaged = false;  // read well, and not what was written
    std::shared_ptr<const shared_file> file;  // NULL: the spill file
    uint64_t offset  = 0;
};

// take_source takes the pending rotations of the page as well.
source take_source(kvp_pager & p, page_id id);

// fill makes a frame hold a page, but for its rotations. Without the mutex.
void fill(kvp_pager & p, const layer_state & l, uint8_t * data, const source & from, transfer & t);

// sum_extents reads what extents hold and notes its checksums in them. Without the mutex.
void sum_extents(kvp_pager & p, const layer_state & l, std::vector<extent_ref> & extents, transfer & t);

// write_page writes what the slot of a page, which nobody can change now, lacks of it. It
// releases and takes the lock, and makes an error sticky.
int write_page(kvp_pager & p, page_id id, lock_t & lock);

void fail_read(kvp_pager & p, page_id id, const transfer & t);

}  // namespace kvp
