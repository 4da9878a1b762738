package guard

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// steps are the buffers through which data of an isolated tier is copied.
var steps = sync.Pool{New: func() any { p := make([]byte, pagefile.StepBytes); return &p }}

// blob reads in steps of at most StepBytes, each with its own time limit: a slow tier makes progress, a
// hung one is noticed. The description was read when the file was opened, within the same time limit.
type blob struct {
	t     *Tier
	inner tier.Blob
	info  tier.Info
}

func (t *Tier) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	if err := t.ends.crowded(); err != nil {
		return nil, err
	}
	opened, err := do(ctx, t, t.Lookup, t.StepIn, (*blob).closeInner, func(ctx context.Context) (*blob, error) {
		inner, err := t.Inner.Open(ctx, name, anew)
		if err != nil {
			return nil, err
		}
		described := false
		defer func() {
			if !described { // Info panics
				inner.Close()
			}
		}()
		b := &blob{t: t, inner: inner, info: inner.Info()}
		described = true
		return b, nil
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

func (b *blob) closeInner() { b.inner.Close() }

func (b *blob) Info() tier.Info { return b.info }

func (b *blob) Size() int64 { return b.info.Bytes }

func (b *blob) ReadAt(ctx context.Context, p []byte, off int64) error {
	for len(p) > 0 {
		n := min(len(p), pagefile.StepBytes)
		release := func(step *[]byte) { steps.Put(step) }
		step, err := do(ctx, b.t, b.t.Transfer, b.t.StepIn, release, func(ctx context.Context) (*[]byte, error) {
			step := steps.Get().(*[]byte)
			if err := b.inner.ReadAt(ctx, (*step)[:n], off); err != nil {
				steps.Put(step)
				return nil, err
			}
			return step, nil
		})
		if b.t.moved(&b.t.reads, err) != nil {
			return err
		}
		copy(p[:n], *step)
		steps.Put(step)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// ReadsAtOnce returns the number of steps to read at the same time. A network takes its time for each step,
// for any number of steps. Two pages may be read at a time, and all their steps find a worker at once.
func (b *blob) ReadsAtOnce() int { return transferWorkers / 2 }

func (b *blob) Close() { b.t.ends.add(b.inner.Close) }

// upload writes in steps, as blob reads. An operation that was given up may still run in its worker, so
// one goroutine at a time uses the upload below, and after a failure only to abort it.
type upload struct {
	t         *Tier
	inner     tier.Upload
	written   int64
	sealed    bool
	committed bool // as reported to the caller, or given up

	mu   sync.Mutex     // held while inner is in use
	done tier.Committed // of inner; zero while the file is not visible
}

func (t *Tier) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if err := t.ends.crowded(); err != nil {
		return nil, err
	}
	inner, err := doWrite(ctx, t, t.StepIn, tier.Upload.Abort, func(ctx context.Context) (tier.Upload, error) {
		return t.Inner.Create(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	return &upload{t: t, inner: inner}, nil
}

func (u *upload) Write(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), pagefile.StepBytes)
		step := bytes.Clone(p[:n])
		u.written += int64(n)
		err := write(ctx, u.t, u.t.StepIn, func(ctx context.Context) error {
			u.mu.Lock()
			defer u.mu.Unlock()
			return u.inner.Write(ctx, step)
		})
		if u.t.moved(&u.t.writes, err) != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (u *upload) Written() int64 { return u.written }

func (u *upload) Seal(ctx context.Context) error {
	err := write(ctx, u.t, commitSteps*u.t.StepIn, func(ctx context.Context) error {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.inner.Seal(ctx)
	})
	u.sealed = err == nil
	return u.t.moved(&u.t.seals, err)
}

func (u *upload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	limit := u.t.StepIn
	if !u.sealed {
		limit *= commitSteps
	}
	done, err := doWrite(ctx, u.t, limit, nil, func(ctx context.Context) (tier.Committed, error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		done, err := u.inner.Commit(ctx, used)
		u.done = done
		return done, err
	})
	u.committed = done.Bytes > 0
	if err == nil {
		u.t.Breaker.stored()
	}
	return done, u.t.moved(&u.t.commits, err)
}

// Abort does not wait. The written bytes count until the file is removed; a file that became
// visible nevertheless is a page.
func (u *upload) Abort() {
	if u.committed {
		return
	}
	u.committed = true // or given up; later calls do nothing
	takes := pagefile.AlignUp(u.written)
	u.t.Leaving.Add(takes)
	u.t.ends.add(func() {
		defer u.t.Leaving.Add(-takes)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.inner.Abort()
		if u.done.Bytes > 0 {
			u.t.Appeared(u.done)
		}
	})
}
