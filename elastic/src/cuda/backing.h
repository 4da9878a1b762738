// Memory of a CUDA device behind a pool, over the driver's virtual memory management.
//
// A region is reserved addresses. Each granule of it is in one of three states:
//
//   real   a handle of its own is mapped: committed
//   zero   the pool's zero granule is mapped: uncommitted, and may be touched
//   hole   nothing is mapped: uncommitted under KVC_BARE, behind the last real granule under
//          KVC_BARE_END, or after a failed restoration
//
// The zero granule is one handle of the granule's size, mapped wherever a granule is
// uncommitted, because kernels read padded views and write rows of masked cells there. It is
// writable, so its contents are anything; the name says how it begins. One mapping stands for
// one granule: the driver unmaps whole mappings alone, and a larger zero mapping would have to
// be taken away under neighbours that stay uncommitted and may be in use. The price is a
// cuMemMap for each granule when a buffer is allocated: 7,168 calls for 14 GiB. KVC_BARE_END
// does not pay it, nor the wait for queued work and the unmapping when a buffer grows at its end.
//
// Kept memory is handles that are mapped nowhere: any granule can use them, and they are
// released without touching a mapping, while kernels run.
#pragma once

#include <memory>

#include "kvc.h"
#include "pool/backing.h"

namespace kvc {

int cuda_backing(int device, const kvc_options_t & options, std::unique_ptr<Backing> & out);

}  // namespace kvc
