package elastic

import "github.com/kvtier/kvtier/internal/memory"

// Available is the memory that the system can give to this process, in bytes: without swapping,
// and within the limits of its control groups.
func Available() (uint64, error) { return memory.Available() }
