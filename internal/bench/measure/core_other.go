//go:build !linux

package measure

import "time"

// OnCore returns the time that fn takes by the clock: only Linux is asked for the CPU time of a
// thread.
func OnCore(fn func() error) (time.Duration, error) {
	started := time.Now()
	err := fn()
	return time.Since(started), err
}
