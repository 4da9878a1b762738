// Host memory behind a pool.
//
// A region is one private anonymous mapping that may be read and written everywhere. Reads of
// pages without memory show the kernel's zero page and take no memory. A commit drops pages
// that stray writes may have left, and brings fresh ones (MADV_POPULATE_WRITE), so that lack
// of memory is an error here instead of a signal later, as far as the kernel knows.
// Uncommitting is MADV_DONTNEED. Huge pages are off by default: khugepaged would fill a huge
// page around one page that is in use, and so take back memory that was given up.
//
// Kept memory stays where it is: a granule is kept at its own address, and only a commit of
// the same granule takes it.
#pragma once

#include <memory>

#include "cpu/system.h"
#include "kvc.h"
#include "pool/backing.h"

namespace kvc {

int cpu_backing(const kvc_options_t & options, const System & system, std::unique_ptr<Backing> & out);

}  // namespace kvc
