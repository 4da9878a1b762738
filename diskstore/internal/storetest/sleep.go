package storetest

import (
	"time"
	"unsafe"
)

// Slept returns now as it was before this machine slept for a while: the monotonic clock
// has stood still. The upper bits of a Time's first word are its seconds.
func Slept(d time.Duration) time.Time {
	at := time.Now()
	*(*uint64)(unsafe.Pointer(&at)) -= uint64(d/time.Second) << 30
	return at
}
