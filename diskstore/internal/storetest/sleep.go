package storetest

import (
	"time"
	"unsafe"
)

// Slept returns a time taken just before this machine slept for d: the monotonic clock has not
// counted the sleep. The upper bits of a Time's first word are its seconds.
func Slept(d time.Duration) time.Time {
	at := time.Now()
	*(*uint64)(unsafe.Pointer(&at)) -= uint64(d/time.Second) << 30
	return at
}
