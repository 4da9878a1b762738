// The ledger counts the bytes in use on each device, of this process and of all others that
// share FAKEGPU_DIR.
#pragma once

#include <cstddef>

namespace fakegpu {

// take_memory counts bytes as used. false: the device has not that many left.
bool take_memory(int device, size_t bytes);
void give_memory(int device, size_t bytes);

size_t used_memory(int device);

// publish_memory lets other processes see the use of the driver of FAKEGPU_DRIVER, too.
void publish_memory();

}  // namespace fakegpu
