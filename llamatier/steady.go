package llamatier

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// steady is a Store whose operations end in time. A local disk may hang, and requests wait for
// look-ups. While an operation hangs, all others fail at once, so that a bounded number of them
// is left behind.
type steady struct {
	store    Store
	patience *patience

	mu   sync.Mutex
	hung int // operations that are left behind
}

var errHung = errors.New("the page store does not answer")

// within runs an operation and waits for it at most some time.
func within[T any](s *steady, most time.Duration, do func() (T, error)) (T, error) {
	return withinOr(s, most, do, func(T, error) {})
}

// withinOr does as within, and calls late with a result that comes later.
func withinOr[T any](s *steady, most time.Duration, do func() (T, error), late func(T, error)) (value T, err error) {
	s.mu.Lock()
	hung := s.hung > 0
	s.mu.Unlock()
	if hung {
		return value, errHung
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
	}
	s.note(1)
	go func() {
		r := <-done
		late(r.value, r.err)
		s.note(-1)
	}()
	return value, errHung
}

func (s *steady) note(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung += n
}

// Chain implements Store. A store that hangs has no pages.
func (s *steady) Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := within(s, s.patience.find, func() ([]diskstore.Ref, error) { return s.store.Chain(ctx, tokens, media), nil })
	return refs
}

// TailsWithin implements Store.
func (s *steady) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := within(s, s.patience.find, func() ([]diskstore.Ref, error) {
		return s.store.TailsWithin(ctx, parent, start, tokens, media), nil
	})
	return refs
}

// Has implements Store.
func (s *steady) Has(key pagefile.Key) bool {
	has, _ := within(s, s.patience.find, func() (bool, error) { return s.store.Has(key), nil })
	return has
}

// LayoutOf implements Store.
func (s *steady) LayoutOf(ctx context.Context, ref diskstore.Ref) (pagefile.Layout, error) {
	return within(s, s.patience.find, func() (pagefile.Layout, error) { return s.store.LayoutOf(ctx, ref) })
}

// Put implements Store.
func (s *steady) Put(ctx context.Context, p *pagefile.Page) error {
	_, err := within(s, s.patience.page, func() (struct{}, error) { return struct{}{}, s.store.Put(ctx, p) })
	return err
}

// Read implements Store. After errHung nobody may use buf.
func (s *steady) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) error {
	_, err := within(s, s.patience.page, func() (struct{}, error) {
		return struct{}{}, s.store.Read(ctx, ref, tokens, layout, buf, how...)
	})
	return err
}

// writer returns the writer of a file. Writes to a disk end in time; after errHung nobody may use
// their bytes.
func (s *steady) writer(f *slotfile.File) io.WriterAt {
	if f.OnDisk() {
		return steadyWriter{s, f}
	}
	return f
}

type steadyWriter struct {
	s *steady
	f *slotfile.File
}

// WriteAt implements io.WriterAt.
func (w steadyWriter) WriteAt(p []byte, off int64) (int, error) {
	return within(w.s, w.s.patience.page, func() (int, error) { return w.f.WriteAt(p, off) })
}
