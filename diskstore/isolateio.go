package diskstore

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// steps are the buffers that data crosses an isolated tier in.
var steps = sync.Pool{New: func() any { p := make([]byte, stepBytes); return &p }}

// isolatedBlob reads in steps of at most stepBytes, each with its own time
// limit: a slow tier makes progress, a hung one is noticed.
type isolatedBlob struct {
	t     *isolated
	inner Blob
}

func (t *isolated) Open(ctx context.Context, name Name) (Blob, error) {
	return t.open(ctx, name, t.inner.Open)
}

func (t *isolated) Reopen(ctx context.Context, name Name) (Blob, error) {
	return t.open(ctx, name, t.inner.Reopen)
}

func (t *isolated) open(ctx context.Context, name Name, open func(context.Context, Name) (Blob, error)) (Blob, error) {
	inner, err := do(ctx, t, t.lookup, t.stepIn, Blob.Close, func(ctx context.Context) (Blob, error) {
		return open(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	return &isolatedBlob{t: t, inner: inner}, nil
}

func (b *isolatedBlob) Info() Info { return b.inner.Info() }

func (b *isolatedBlob) Size() int64 { return b.inner.Size() }

func (b *isolatedBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	for len(p) > 0 {
		n := min(len(p), stepBytes)
		release := func(step *[]byte) { steps.Put(step) }
		step, err := do(ctx, b.t, b.t.transfer, b.t.stepIn, release, func(ctx context.Context) (*[]byte, error) {
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

// ReadsAtOnce: a network takes its time for each step, however many there are. Two
// pages may be read at a time, and all their steps should find a worker at once.
func (b *isolatedBlob) ReadsAtOnce() int { return transferWorkers / 2 }

func (b *isolatedBlob) Close() { b.t.inWorker(b.inner.Close) }

// isolatedUpload writes in steps like isolatedBlob reads. An operation that was
// given up may still be running in its worker, so the upload below is used by
// one at a time, and after a failure only to abort it.
type isolatedUpload struct {
	t         *isolated
	inner     Upload
	written   int64
	committed bool // as far as the caller was told, or given up

	mu   sync.Mutex // held while inner is in use
	done Committed  // of inner; zero while it is not visible
}

func (t *isolated) Create(ctx context.Context, name Name) (Upload, error) {
	inner, err := do(ctx, t, t.transfer, t.stepIn, Upload.Abort, func(ctx context.Context) (Upload, error) {
		return t.inner.Create(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	return &isolatedUpload{t: t, inner: inner}, nil
}

func (u *isolatedUpload) Write(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), stepBytes)
		step := bytes.Clone(p[:n])
		u.written += int64(n)
		_, err := do(ctx, u.t, u.t.transfer, u.t.stepIn, nil, func(ctx context.Context) (struct{}, error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			return struct{}{}, u.inner.Write(ctx, step)
		})
		if u.t.moved(&u.t.writes, err) != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (u *isolatedUpload) Written() int64 { return u.written }

func (u *isolatedUpload) Commit(ctx context.Context, used time.Time) (Committed, error) {
	done, err := do(ctx, u.t, u.t.transfer, commitSteps*u.t.stepIn, nil, func(ctx context.Context) (Committed, error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		var err error
		u.done, err = u.inner.Commit(ctx, used)
		return u.done, err
	})
	u.committed = done.Bytes > 0
	return done, u.t.moved(&u.t.commits, err)
}

// Abort does not wait. What was written counts until it is gone; if the tier has
// made it visible after all it is a page.
func (u *isolatedUpload) Abort() {
	if u.committed {
		return
	}
	u.committed = true // or given up: once is enough
	takes := alignUp(u.written)
	u.t.leaving.Add(takes)
	u.t.inWorker(func() {
		defer u.t.leaving.Add(-takes)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.inner.Abort()
		if u.done.Bytes > 0 {
			u.t.appeared(u.done)
		}
	})
}
