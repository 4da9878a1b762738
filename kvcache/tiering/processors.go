package tiering

import (
	"os"
	"runtime"
)

// processorsMin is for how many goroutines there must be room at once while slots compute
// and another restores: the batch, a reader of pages, a writer of rows, and whoever passes
// tokens on.
//
// The first three are in C or in system calls most of the time. Go's scheduler takes a
// processor back from such a call only when its monitor comes by, up to 10 ms later: with a
// processor for each of two cores, tokens that were ready waited that long to be sent, though
// a core was free.
const processorsMin = 4

// ensureProcessors lets goroutines run beside those in C. Which of them gets a core is for
// the kernel to say, which knows of priorities and is quicker. Somebody's own GOMAXPROCS
// stays.
func ensureProcessors() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < processorsMin {
		runtime.GOMAXPROCS(processorsMin)
	}
}
