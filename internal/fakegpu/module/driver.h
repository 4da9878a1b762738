// The fake CUDA driver of elastic's tests, where FAKEGPU_DRIVER names its library. Its memory
// and that of this module are one device's, and its cuCtxSynchronize waits for the streams.
#pragma once

#include <cstddef>

namespace fakegpu {

// connect_driver loads the library. A library that was named and is not there ends the process.
void connect_driver();

// The bytes in use by the driver, which are on device 0.
size_t driver_memory();

}  // namespace fakegpu
