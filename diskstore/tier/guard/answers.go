package guard

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// A tier below may be written by anybody. Its panics and answers that cannot be are
// failures of the tier, and never reach the store.

// errNothing reports a tier that returned neither a result nor an error.
var errNothing = errors.New("diskstore: the tier returned neither a result nor an error")

// errPanic reports a tier that panicked.
var errPanic = errors.New("diskstore: the tier panicked")

// try runs op. A panic becomes an error.
func try[T any](t *Tier, op func() (T, error)) (v T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
			t.panics.Do(func() {
				t.log.Error("kv tier panicked, later panics of it are not logged", "error", cause, "stack", string(debug.Stack()))
			})
		}
	}()
	return op()
}

// end runs fn, which gives something up, and survives its panic.
func (t *Tier) end(fn func()) {
	_, _ = try(t, func() (struct{}, error) {
		fn()
		return struct{}{}, nil
	})
}
