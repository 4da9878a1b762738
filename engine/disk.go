package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/priority"
	"github.com/kvtier/kvtier/internal/steady"
)

// Pages are the pages of a store. [diskstore.Store] has some.
type Pages interface {
	Find(ctx context.Context, p diskstore.Prompt) diskstore.Found
	Has(key pagefile.Key) bool
	Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error
}

// Patience bounds the waits for a local disk that may hang. A slow disk needs less.
type Patience struct {
	Look  time.Duration // after which a look-up returns what it has found
	Find  time.Duration // for a look-up, for which a request waits
	Page  time.Duration // for reading or storing a page; the time of a restore has its own bound
	Grace time.Duration // for an operation whose request is gone, or is computed instead
}

// UsualPatience is that of both engines.
var UsualPatience = Patience{Look: 4 * time.Second, Find: 5 * time.Second, Page: time.Minute, Grace: 5 * time.Second}

// Disk asks a store whose local disk may hang, in bounded time. While an operation is left behind, all
// others fail at once with steady.ErrHung, so that their number is bounded. So does Find after one that
// ran out of time, for as long: a request that looks several times waits once.
type Disk[P Pages] struct {
	Store    P
	Patience Patience
	NoteRead func(ref diskstore.Ref, err error) // takes the result of a read, also of one that was left behind; may be nil

	guard steady.Guard
	slow  atomic.Int64 // until then Find does not ask, in Unix nanoseconds
}

// Hangs reports whether an operation is left behind.
func (d *Disk[P]) Hangs() bool { return d.guard.Hangs() }

// Wait bounds an operation on the store's disk. A result that comes later goes to late, which may be nil.
func Wait[T any, P Pages](ctx context.Context, d *Disk[P], limit steady.Wait, do func() (T, error), late func(T, error)) (T, error) {
	return steady.Do(ctx, &d.guard, limit, do, late)
}

// Ask bounds an operation for which a request waits.
func Ask[T any, P Pages](ctx context.Context, d *Disk[P], do func() (T, error)) (T, error) {
	return Wait(ctx, d, steady.Wait{Most: d.Patience.Find, Grace: d.Patience.Grace}, do, nil)
}

// Find does as [diskstore.Store.Find]. The error says that nothing is known of pages behind those that
// were found: a slow disk finds what it can in Patience.Look.
func (d *Disk[P]) Find(ctx context.Context, p diskstore.Prompt) (diskstore.Found, error) {
	if time.Now().UnixNano() < d.slow.Load() {
		return diskstore.Found{}, steady.ErrHung
	}
	return Ask(ctx, d, func() (diskstore.Found, error) {
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		var over atomic.Bool // not by a deadline: a remote tier that is asked at that moment is not the slow one
		defer time.AfterFunc(d.Patience.Look, func() { over.Store(true); cancel() }).Stop()
		found := d.Store.Find(limited, p)
		if over.Load() {
			d.slow.Store(time.Now().Add(d.Patience.Look).UnixNano())
			return found, context.DeadlineExceeded
		}
		return found, ctx.Err()
	})
}

// SlowTier is the tier that Find asked when its time was over; "" if it was not. found are the pages of
// the longest chain, and err is Find's.
func SlowTier(found []diskstore.Ref, err error) string {
	switch n := len(found); {
	case !errors.Is(err, steady.ErrHung) && !errors.Is(err, context.DeadlineExceeded):
		return ""
	case n > 0 && found[n-1].Tier == tier.Remote:
		return tier.Remote
	}
	return tier.Local
}

// Has does as [diskstore.Store.Has]. The error says that nothing is known of the page.
func (d *Disk[P]) Has(ctx context.Context, key pagefile.Key) (bool, error) {
	return Ask(ctx, d, func() (bool, error) { return d.Store.Has(key), nil })
}

// Read does as [diskstore.Store.Read], at a lower priority if it is gentle. After steady.ErrHung nobody
// may use into.Rows, and into.Use is not called any more.
func (d *Disk[P]) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
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
	_, err := Wait(ctx, d, steady.Wait{Most: d.Patience.Page, Grace: d.Patience.Grace}, func() (struct{}, error) {
		if into.Gently {
			priority.Lower()
		}
		return struct{}{}, d.Store.Read(ctx, ref, tokens, layout, into)
	}, func(_ struct{}, err error) {
		if mine.File != nil {
			mine.File.Close() // the file was only read
		}
		if d.NoteRead != nil {
			d.NoteRead(ref, err)
		}
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

// ErrLeftBehind ends a read whose reader is gone.
var ErrLeftBehind = errors.New("the reader of the page is gone")

func (g *sectionGate) pass(i int, rows []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrLeftBehind
	}
	return g.use(i, rows)
}

// close waits for the section that is being used.
func (g *sectionGate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
