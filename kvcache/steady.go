package kvcache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/priority"
	"github.com/kvtier/kvtier/internal/steady"
)

// patience bounds the waits for a store whose local disk may hang. A slow disk needs less.
type patience struct {
	find  time.Duration // for a look-up
	page  time.Duration // for reading a page; the time of a restore has its own bound
	queue time.Duration // for queued pages of a restore's own text; pages written later are computed again
	grace time.Duration // for a read whose request is gone, or is computed instead
	flush time.Duration // for a flush whose time is over
	close time.Duration // for closing the store, which takes 5 s at most on a disk that answers
}

var usualPatience = patience{find: 5 * time.Second, page: time.Minute, queue: 2 * time.Second, grace: 5 * time.Second, flush: time.Second, close: 6 * time.Second}

// steadyStore asks a store for which requests wait in bounded time. While an operation hangs, the
// store has no pages. Only the goroutine that writes pages has the store itself, and waits for Put as
// long as it takes.
type steadyStore struct {
	inner    Store
	patience patience
	guard    steady.Guard
	noteRead func(ref diskstore.Ref, err error) // takes the result of reading a page, also of a read that was left behind
}

// quick runs an operation for which a request waits.
func quick[T any](ctx context.Context, s *steadyStore, do func() (T, error)) (T, error) {
	return steady.Do(ctx, &s.guard, steady.Wait{Most: s.patience.find, Grace: s.patience.grace}, do, func(T, error) {})
}

// find does as [Store.Find]. The error says that nothing is known of the pages.
func (s *steadyStore) find(ctx context.Context, p diskstore.Prompt) (diskstore.Found, error) {
	return quick(ctx, s, func() (diskstore.Found, error) { return s.inner.Find(ctx, p), ctx.Err() })
}

// anyOf does as [Store.AnyOf].
func (s *steadyStore) anyOf(ctx context.Context, keys []pagefile.Key) (pagefile.Key, bool) {
	key, err := quick(ctx, s, func() (pagefile.Key, error) {
		if key, found := s.inner.AnyOf(ctx, keys); found {
			return key, nil
		}
		return pagefile.Key{}, tier.ErrNotFound
	})
	return key, err == nil
}

// has does as [Store.Has]. The error says that nothing is known of the page.
func (s *steadyStore) has(ctx context.Context, key pagefile.Key) (bool, error) {
	return quick(ctx, s, func() (bool, error) { return s.inner.Has(key), nil })
}

// read does as [Store.Read], at a lower priority if it is gentle. After steady.ErrHung nobody may use
// into.Rows, and into.Use is not called any more.
func (s *steadyStore) read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	gate := sectionGate{use: into.Use}
	defer gate.close()
	if into.Use != nil {
		into.Use = gate.pass
	}
	var mine diskstore.Placed // of a read that is left behind, too
	placed := into.Placed
	if placed != nil {
		into.Placed = &mine
	}
	_, err := steady.Do(ctx, &s.guard, steady.Wait{Most: s.patience.page, Grace: s.patience.grace}, func() (struct{}, error) {
		if into.Gently {
			priority.Lower()
		}
		return struct{}{}, s.inner.Read(ctx, ref, tokens, layout, into)
	}, func(_ struct{}, err error) {
		if mine.File != nil {
			mine.File.Close() // the file was only read
		}
		s.noteRead(ref, err)
	})
	if err == nil && placed != nil {
		*placed = mine
	}
	return err
}

// sectionGate passes sections of a page on, one at a time, until it is closed: a read that is left behind
// may go on while its cells belong to other rows.
type sectionGate struct {
	mu     sync.Mutex
	closed bool
	use    func(i int, rows []byte) error
}

// errLeftBehind ends a read whose reader is gone.
var errLeftBehind = errors.New("the reader of the page is gone")

func (g *sectionGate) pass(i int, rows []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errLeftBehind
	}
	return g.use(i, rows)
}

// close waits for the section that is being used.
func (g *sectionGate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// flush does as [Store.Flush].
func (s *steadyStore) flush(ctx context.Context) error {
	return s.saved(ctx, s.patience.page, func() error { return s.inner.Flush(ctx) })
}

// saved runs an operation that saves files on the store's disk, for a bounded time.
func (s *steadyStore) saved(ctx context.Context, most time.Duration, save func() error) error {
	_, err := steady.Do(ctx, &s.guard, steady.Wait{Most: most, Grace: s.patience.flush}, func() (struct{}, error) {
		return struct{}{}, save()
	}, func(struct{}, error) {})
	return err
}

// close does as [Store.Close]. close waits for a store that hangs at most patience.close.
func (s *steadyStore) close() error {
	var none steady.Guard // nothing else is in the way of closing
	_, err := steady.Do(context.Background(), &none, steady.Wait{Most: s.patience.close}, func() (struct{}, error) {
		return struct{}{}, s.inner.Close()
	}, func(struct{}, error) {})
	return err
}
