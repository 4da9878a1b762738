package guard

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// refusedError is the error of a write that a filesystem refuses to this process: the tier
// answers, and may be readable.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// isRefused reports whether a filesystem has refused a write.
func isRefused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

// doWrite does as do, for an operation that writes.
func doWrite[T any](ctx context.Context, t *Tier, limit time.Duration, late func(T), op func(context.Context) (T, error)) (T, error) {
	return do(ctx, t, t.Transfer, limit, late, func(ctx context.Context) (T, error) {
		v, err := op(ctx)
		if vfs.IsRefused(err) {
			err = &refusedError{err}
		}
		return v, err
	})
}

const refusedRemedy = "mount and export it for writing; for NFS without root_squash or all_squash, or run every server as the user who owns the directory and the files below it"

// noteRefused logs the first of the writes that the filesystem refuses in a row.
func (t *Tier) noteRefused(err error) {
	if !t.refused.Swap(true) && !t.Breaker.isSilent() {
		t.log.Warn("kv tier refuses writes, and is only read: pages that leave the local tier are lost", "error", err, "remedy", refusedRemedy)
	}
}

// noteStored logs that a page was stored again.
func (t *Tier) noteStored() {
	if t.refused.Swap(false) && !t.Breaker.isSilent() {
		t.log.Info("kv tier may be written again")
	}
}
