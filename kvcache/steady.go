package kvcache

import (
	"context"
	"errors"
	"slices"
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

// steadyStore is a Store for which requests wait in bounded time. While an operation hangs, the
// store has no pages. Only the goroutine that writes pages waits for Put as long as it takes.
type steadyStore struct {
	Store
	patience patience
	guard    steady.Guard
	noteRead func(ref diskstore.Ref, err error) // takes the result of reading a page, also of a read that was left behind
}

// quick runs an operation for which a request waits.
func quick[T any](ctx context.Context, s *steadyStore, do func() (T, error)) (T, error) {
	return steady.Do(ctx, &s.guard, steady.Wait{Most: s.patience.find, Grace: s.patience.grace}, do, func(T, error) {})
}

// ChainFrom implements Store.
func (s *steadyStore) ChainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := s.chainFrom(ctx, parent, start, tokens, media)
	return refs
}

// chainFrom does as ChainFrom. The error says that nothing is known of the pages.
func (s *steadyStore) chainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) ([]diskstore.Ref, error) {
	return quick(ctx, s, func() ([]diskstore.Ref, error) {
		return s.Store.ChainFrom(ctx, parent, start, tokens, media), ctx.Err()
	})
}

// ChainLossy implements Store.
func (s *steadyStore) ChainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := s.chainLossy(ctx, parent, start, tokens, media)
	return refs
}

// chainLossy does as ChainLossy. The error says that nothing is known of the pages.
func (s *steadyStore) chainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) ([]diskstore.Ref, error) {
	return quick(ctx, s, func() ([]diskstore.Ref, error) {
		return s.Store.ChainLossy(ctx, parent, start, tokens, media), ctx.Err()
	})
}

// TailsWithin implements Store.
func (s *steadyStore) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := quick(ctx, s, func() ([]diskstore.Ref, error) {
		return s.Store.TailsWithin(ctx, parent, start, tokens, media), nil
	})
	return refs
}

// AnyOf implements Store.
func (s *steadyStore) AnyOf(ctx context.Context, keys []pagefile.Key) (pagefile.Key, bool) {
	key, err := quick(ctx, s, func() (pagefile.Key, error) {
		if key, found := s.Store.AnyOf(ctx, keys); found {
			return key, nil
		}
		return pagefile.Key{}, tier.ErrNotFound
	})
	return key, err == nil
}

// LayoutOf implements Store.
func (s *steadyStore) LayoutOf(ctx context.Context, ref diskstore.Ref) (pagefile.Layout, error) {
	return quick(ctx, s, func() (pagefile.Layout, error) { return s.Store.LayoutOf(ctx, ref) })
}

// Has implements Store.
func (s *steadyStore) Has(key pagefile.Key) bool {
	has, _ := s.has(context.Background(), key)
	return has
}

// has does as Has. The error says that nothing is known of the page.
func (s *steadyStore) has(ctx context.Context, key pagefile.Key) (bool, error) {
	return quick(ctx, s, func() (bool, error) { return s.Store.Has(key), nil })
}

// Read implements Store. After steady.ErrHung nobody may use buf.
func (s *steadyStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) error {
	_, err := readWithin(ctx, s, how, func() (struct{}, error) {
		return struct{}{}, s.Store.Read(ctx, ref, tokens, layout, buf, how...)
	}, func(_ struct{}, err error) { s.noteRead(ref, err) })
	return err
}

// ReadSections implements Store. After steady.ErrHung use is not called any more.
func (s *steadyStore) ReadSections(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, use diskstore.Use, how ...diskstore.ReadOption) error {
	gate := gate{use: use}
	defer gate.close()
	_, err := readWithin(ctx, s, how, func() (struct{}, error) {
		return struct{}{}, s.Store.ReadSections(ctx, ref, tokens, layout, gate.pass, how...)
	}, func(_ struct{}, err error) { s.noteRead(ref, err) })
	return err
}

// ReadPlaced implements Store. After steady.ErrHung use is not called any more.
func (s *steadyStore) ReadPlaced(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, use diskstore.Use, how ...diskstore.ReadOption) (*diskstore.Placed, error) {
	gate := gate{use: use}
	defer gate.close()
	return readWithin(ctx, s, how, func() (*diskstore.Placed, error) {
		return s.Store.ReadPlaced(ctx, ref, tokens, layout, gate.pass, how...)
	}, func(placed *diskstore.Placed, err error) {
		if placed != nil {
			placed.Close() // the file was only read
		}
		s.noteRead(ref, err)
	})
}

// gate passes sections of a page on, one at a time, until it is closed: a read that is left behind
// may go on while its cells belong to other rows.
type gate struct {
	mu     sync.Mutex
	closed bool
	use    diskstore.Use
}

// errLeftBehind ends a read whose reader is gone.
var errLeftBehind = errors.New("the reader of the page is gone")

func (g *gate) pass(i int, rows []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errLeftBehind
	}
	return g.use(i, rows)
}

// close waits for the section that is being used.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// readWithin runs a read, at a lower priority if it is gentle.
func readWithin[T any](ctx context.Context, s *steadyStore, how []diskstore.ReadOption, read func() (T, error), late func(T, error)) (T, error) {
	return steady.Do(ctx, &s.guard, steady.Wait{Most: s.patience.page, Grace: s.patience.grace}, func() (T, error) {
		if slices.Contains(how, diskstore.Gently) {
			priority.Lower()
		}
		return read()
	}, late)
}

// Flush implements Store.
func (s *steadyStore) Flush(ctx context.Context) error {
	return s.saved(ctx, s.patience.page, func() error { return s.Store.Flush(ctx) })
}

// saved runs an operation that saves files on the store's disk, for a bounded time.
func (s *steadyStore) saved(ctx context.Context, most time.Duration, save func() error) error {
	_, err := steady.Do(ctx, &s.guard, steady.Wait{Most: most, Grace: s.patience.flush}, func() (struct{}, error) {
		return struct{}{}, save()
	}, func(struct{}, error) {})
	return err
}

// Close implements Store. Close waits for a store that hangs at most patience.close.
func (s *steadyStore) Close() error {
	var none steady.Guard // nothing else is in the way of closing
	_, err := steady.Do(context.Background(), &none, steady.Wait{Most: s.patience.close}, func() (struct{}, error) {
		return struct{}{}, s.Store.Close()
	}, func(struct{}, error) {})
	return err
}
