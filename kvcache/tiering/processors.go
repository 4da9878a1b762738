package tiering

import (
	"os"
	"runtime"
)

// processorsMin is the number of goroutines that must be able to run at once while some slots compute
// and another restores: the batch, a reader of pages, a writer of rows, and the goroutine that sends
// tokens. The first three are mostly in C or in system calls, from which Go's scheduler takes a processor
// back up to 10 ms later: on two cores finished tokens waited that long although a core was free.
const processorsMin = 4

// ensureProcessors lets other goroutines run beside those in C. The kernel decides which of them gets a
// core: it knows priorities and reacts faster. A GOMAXPROCS set by the user stays.
func ensureProcessors() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < processorsMin {
		runtime.GOMAXPROCS(processorsMin)
	}
}
