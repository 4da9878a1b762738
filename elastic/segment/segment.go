package segment

import (
	"errors"
	"fmt"
	"regexp"
)

// Dir is where segments are.
const Dir = "/dev/shm"

// A Segment is the KV memory of one pool. Sizes are in bytes.
type Segment struct {
	Name     string
	Limit    int64 // of Used and Kept together
	Used     int64 // in use; after the limit was lowered it may be more
	Kept     int64 // not in use, and kept for reuse
	InForce  int64 // the limit that the process obeys; Limit where it does not tell
	Promised int64 // by which Used will grow under any limit, where its process tells it
	Lacking  int64 // that work waits for, where its process tells it
	Spare    int64 // part of Used that a lower limit would free, where its process tells it
	State    State
	PID      int // of the process that holds it, or 0 where that is not known
	ReadOnly bool
}

// A State says whether the process of a segment lives.
type State string

const (
	Live State = "live"
	Dead State = "dead" // the process ended and left its segment

	// Locked segments of live processes could not be read in time: a tool, perhaps stopped, has the
	// lock.
	Locked State = "locked"

	// Deleted segments have been removed by a tool, or have another size now. Their processes, which
	// live, make them again in the next round. The memory in use is not known.
	Deleted State = "deleted"

	// Foreign segments have no lock beside them, as kvcached's: their process may live or not.
	Foreign State = "foreign"
)

var (
	// ErrBusy: a process holds the segment's lock, and does not let it go.
	ErrBusy = errors.New("its lock is held by another process, which may be stopped; try again, or end that process")

	// ErrNoSegment: no segment has this name.
	ErrNoSegment = errors.New("there is no such segment; kvtier limit lists those there are")

	ErrDead        = errors.New("its process has ended")
	ErrUnsupported = errors.New("KV memory of other processes can be seen on Linux alone")
)

// LimitMax is the largest limit, more than any machine's memory. Processes refuse larger ones too.
const LimitMax = int64(1) << 50

// names are those that processes may choose.
var names = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$`)

// checkName refuses names that lead out of the directory.
func checkName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("%q is not the name of a segment; kvtier limit lists them", name)
	}
	return nil
}

func checkLimit(bytes int64) error {
	if bytes <= 0 || bytes > LimitMax {
		return fmt.Errorf("a limit of %d bytes is not between 1 byte and 1 PiB", bytes)
	}
	return nil
}
