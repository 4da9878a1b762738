package kvcache

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// watch ends the test process with the stacks of all goroutines when stop is not called in time:
// goroutines that wait for each other would end it much later, without a word about this test.
func watch(t testing.TB, within time.Duration, doing func() string) (stop func()) {
	timer := time.AfterFunc(within, func() {
		stacks := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s: stuck for %v: %s\n\n%s", t.Name(), within, doing(), stacks[:runtime.Stack(stacks, true)]))
	})
	return func() { timer.Stop() }
}
