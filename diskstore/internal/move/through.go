package move

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// ThroughMost bounds the names of pages that wait to be written through, to about 200 KiB. The next
	// process finds those beyond it.
	ThroughMost = 1024

	throughBatch = 64              // names of one look-up
	throughTries = 6               // failures of a page while the remote tier answers, after which it is left to the next process
	throughSoon  = time.Second     // from a failure to the next attempt, unless a page is stored before
	throughLate  = time.Minute     // the same after several failures, each of which doubles the time
	standBack    = 5 * time.Second // longest wait for Reads and Puts before a page
	markSlack    = 2 * time.Minute // recencies of new pages are earlier than their storing by less
)

// Through copies pages to the remote tier behind their storing, one at a time: the same file, durable and
// checked, that a move down would make, so that a later move down writes nothing. Names wait in memory,
// and the rows are read from the local tier.
//
// The time of the local manifest says up to when nothing waits. The next process looks for pages used later.
type Through struct {
	*Mover
	Queue   *work.Queue
	Traffic *work.Traffic // of Reads and Puts
	PerDay  int64         // bytes that all processes write to the remote tier in a UTC day before this one stops
	Clock   work.Once     // tries again

	Sent, SentBytes, Failed atomic.Uint64

	page   atomic.Int64    // bytes of the last one that was to be sent
	lacked []pagefile.Name // by the last look-up, the remote tier; of the queue's goroutine

	mu      sync.Mutex
	waiting []pagefile.Name
	dropped bool // some page found no place in waiting, or was given up: the next process finds it
	tries   int  // of the first one
	again   time.Duration
}

// Waiting is the number of pages that wait.
func (t *Through) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}

// Add lets a page wait that was just stored. A nil Through ignores it.
func (t *Through) Add(name pagefile.Name) {
	if t != nil {
		t.add(name)
		t.submit()
	}
}

func (t *Through) add(name pagefile.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case slices.Contains(t.waiting, name):
	case len(t.waiting) >= ThroughMost:
		t.dropped = true
	default:
		t.waiting = append(t.waiting, name)
	}
}

func (t *Through) done(name pagefile.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = slices.DeleteFunc(t.waiting, func(n pagefile.Name) bool { return n == name })
	t.tries, t.again = 0, 0
}

// later is the time from a failure to the next attempt.
func (t *Through) later() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again = min(max(2*t.again, throughSoon), throughLate)
	return t.again
}

func (t *Through) batch() []pagefile.Name {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.waiting[:min(len(t.waiting), throughBatch)])
}

type throughJob struct{}

func (t *Through) submit() { t.Queue.Submit(throughJob{}, t.drain) }

func (t *Through) manifest() pagefile.Name {
	return pagefile.Name{Fingerprint: t.Mover.Pages.Exact, Class: pagefile.ClassManifest}
}

// Resume lets pages wait that an earlier process has left, of the latest files of the first count, which
// come with the first pages of each chain first.
func (t *Through) Resume(counting ...*work.Queue) {
	type resumeJob struct{}
	t.Queue.Submit(resumeJob{}, func(ctx context.Context) {
		mark, err := tier.Stat(ctx, t.Local.Tier, t.manifest())
		if err != nil {
			return
		}
		if _, err := t.Local.AwaitFirst(ctx, counting...); err != nil {
			return
		}
		for _, info := range t.Local.First.TakeThrough() {
			if info.Used.After(mark.Used) {
				t.add(info.Name)
			}
		}
		t.drain(ctx)
	})
}

// drain writes through what waits, until the remote tier fails or the day's bytes are used up.
func (t *Through) drain(ctx context.Context) {
	for ctx.Err() == nil {
		names := t.batch()
		if len(names) == 0 {
			t.mark(ctx)
			return
		}
		if t.Resting() || t.spent(t.page.Load()) || !t.next(ctx, names) {
			t.Clock.Start(t.later(), t.submit)
			return
		}
	}
}

// mark notes that nothing waits.
func (t *Through) mark(ctx context.Context) {
	t.mu.Lock()
	dropped := t.dropped
	t.mu.Unlock()
	if !dropped {
		_ = t.Local.Tier.Touch(ctx, t.manifest(), time.Now().Add(-markSlack)) // after an error the next process looks at more
	}
}

// next removes pages that the remote tier has from those that wait, and writes the first of the others. Where another
// host is writing them, next writes any one, so that the two do not meet at each page. next reports false where the
// others have to wait.
func (t *Through) next(ctx context.Context, names []pagefile.Name) bool {
	wait, cancel := context.WithTimeout(ctx, standBack)
	_ = t.Traffic.StandBack(wait)
	cancel()
	there, err := t.there(ctx, names)
	if err != nil {
		return false
	}
	for _, name := range there {
		t.done(name)
	}
	came := slices.ContainsFunc(there, func(name pagefile.Name) bool { return slices.Contains(t.lacked, name) })
	t.lacked = slices.DeleteFunc(names, func(name pagefile.Name) bool { return slices.Contains(there, name) })
	if len(t.lacked) == 0 {
		return true
	}
	name := t.lacked[0]
	if came {
		name = t.lacked[rand.IntN(len(t.lacked))]
	}
	return t.ended(ctx, name, t.send(ctx, name))
}

// there returns the names of which the remote tier has a page, exact or lossy.
func (t *Through) there(ctx context.Context, names []pagefile.Name) (there []pagefile.Name, err error) {
	all := slices.Clone(names)
	if t.Mover.Pages.Cold {
		for _, name := range names {
			all = append(all, pagefile.ColdName(name))
		}
	}
	infos, err := t.Remote.Tier.Find(ctx, all, false)
	for i, info := range infos {
		if name := names[i%len(names)]; info.Found() && !slices.Contains(there, name) {
			there = append(there, name)
		}
	}
	return there, err
}

// errDay reports that the day's bytes are used up.
var errDay = errors.New("diskstore: the day's writes to the remote tier are used up")

// spent reports whether too few of the day's bytes are left for a page: then nothing asks the remote tier.
func (t *Through) spent(bytes int64) bool { return t.Remote.Book.State().Today+bytes > t.PerDay }

// send copies a page, unless it has left the local tier or failed its check. A page that leaves meanwhile was
// removed by a person, or has moved down: the copy is removed.
func (t *Through) send(ctx context.Context, name pagefile.Name) error {
	leave, err := t.alone(ctx, name)
	if err != nil {
		return err
	}
	defer leave()
	info, err := tier.Stat(ctx, t.Local.Tier, name)
	if errors.Is(err, tier.ErrNotFound) || t.Ours.Bad.IsBad(info) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.page.Store(info.Bytes); t.spent(info.Bytes) {
		return errDay
	}
	d, err := t.descend(ctx, info)
	if err == nil {
		err = t.lower(ctx, d)
	}
	if t.localSide(err, pagefile.ErrDamaged) || t.localSide(err, pagefile.ErrMismatch) {
		t.Ours.Condemn(ctx, judged(err, info), err)
		return nil
	}
	if err != nil || d.held {
		return err
	}
	if _, err := tier.Stat(ctx, t.Local.Tier, name); errors.Is(err, tier.ErrNotFound) {
		there, err := tier.Stat(ctx, t.Remote.Tier, d.name())
		if err != nil {
			return err
		}
		_, err = t.Remote.Drop(ctx, there)
		return err
	}
	t.Sent.Add(1)
	t.SentBytes.Add(uint64(d.bytes()))
	return nil
}

// ended handles the result of send, and reports whether the next page may follow.
func (t *Through) ended(ctx context.Context, name pagefile.Name, err error) bool {
	switch {
	case err == nil:
		t.done(name)
		return true
	case ctx.Err() != nil || errors.Is(err, errDay):
		return false
	case errors.Is(err, tier.ErrNoSpace), errors.Is(err, ledger.ErrNotCounted):
		t.Below.Tidy(t.Collecting)
	}
	t.Failed.Add(1)
	if vfs.IsRefused(err) && !t.localSide(err, err) { // as it refuses all pages
		return false
	}
	t.mu.Lock()
	t.tries++
	enough := t.tries >= throughTries && !t.Resting()
	t.dropped = t.dropped || enough
	t.mu.Unlock()
	if enough {
		t.done(name)
	}
	return enough
}
