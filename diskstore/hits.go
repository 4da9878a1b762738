package diskstore

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Hits is how often pages of one fingerprint were read from a tier, by all
// processes as far as they have recorded it, pages that were in memory included.
// It is for people: nothing is decided by it, and what a process has not recorded
// when it is killed is lost.
type Hits struct {
	Pages int64     `json:"pages"` // pages and tails, each as often as it was read
	Last  time.Time `json:"last"`  // zero for never
}

const (
	// hitsEvery is how long a hit waits at most before it is recorded, together
	// with others. Recording costs two syncs.
	hitsEvery = 5 * time.Second

	// hitsPatience is how long Flush, or a job between two collections, waits
	// for a tier to record them.
	hitsPatience = time.Second

	// maxHits is how many fingerprints a ledger has hits of, some 30 KiB; the one
	// that was read least recently is forgotten. mostHits keeps sums of what a
	// forged ledger says from overflowing.
	maxHits  = 256
	mostHits = math.MaxInt64 / 4
)

// plus returns both.
func (h Hits) plus(o Hits) Hits {
	h.Pages = min(h.Pages+o.Pages, mostHits)
	if o.Last.After(h.Last) {
		h.Last = o.Last
	}
	return h
}

// hit adds hits of one fingerprint.
func (l *ledger) hit(fingerprint Key, hits Hits) {
	if l.Hits == nil {
		l.Hits = make(map[string]Hits)
	}
	name := fingerprint.String()
	l.Hits[name] = l.Hits[name].plus(hits)
	l.limitHits()
}

// limitHits forgets the least recent ones of too many.
func (l *ledger) limitHits() {
	if len(l.Hits) <= maxHits {
		return
	}
	names := slices.SortedFunc(maps.Keys(l.Hits), func(a, b string) int {
		return cmp.Or(l.Hits[a].Last.Compare(l.Hits[b].Last), cmp.Compare(a, b))
	})
	for _, name := range names[:len(names)-maxHits] {
		delete(l.Hits, name)
	}
}

// dropBadHits removes what no store has written. They are not worth a ledger.
func (l *ledger) dropBadHits() {
	maps.DeleteFunc(l.Hits, func(name string, h Hits) bool {
		_, err := ParseKey(name)
		return err != nil || h.Pages < 0 || h.Pages > mostHits
	})
	l.limitHits()
}

// allHits is the sum over all fingerprints.
func (l *ledger) allHits() Hits {
	var sum Hits
	for _, h := range l.Hits {
		sum = sum.plus(h)
	}
	return sum
}

// hit counts a page that was read.
func (b *book) hit(fingerprint Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hits[fingerprint] = b.hits[fingerprint].plus(Hits{Pages: 1, Last: b.now()})
}

// unrecordedHits reports whether there are hits that the ledger does not have.
func (b *book) unrecordedHits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hits) > 0
}

// settleHitsLocked forgets hits that the ledger has.
func (b *book) settleHitsLocked(recorded map[Key]Hits) {
	for fp, done := range recorded {
		if h := b.hits[fp]; h.Pages > done.Pages {
			b.hits[fp] = Hits{Pages: h.Pages - done.Pages, Last: h.Last}
		} else {
			delete(b.hits, fp)
		}
	}
}

// forget removes a fingerprint's hits, when all that it had is removed.
func (b *book) forget(ctx context.Context, fingerprint Key) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	b.mu.Lock()
	_, known := b.last.Hits[fingerprint.String()]
	delete(b.hits, fingerprint)
	b.mu.Unlock()
	if !known {
		return nil
	}
	return b.change(ctx, func(l *ledger, _ string, _ pending) error {
		delete(l.Hits, fingerprint.String())
		return nil
	})
}

// hit counts a page that was read from a tier, or from memory as a copy of what
// the tier holds.
func (s *Store) hit(id tierID) {
	s.counts.hits.Add(1)
	s.books[id].hit(s.opt.Fingerprint)
	s.hitClock.start(hitsEvery, func() {
		type hitsJob struct{}
		s.collecting[tierLocal].submit(hitsJob{}, s.recordHits)
	})
}

// recordHits records hits that are not recorded. Where that fails the next hit
// tries again.
func (s *Store) recordHits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	for _, id := range s.tiers(TierLocal) {
		if s.books[id].unrecordedHits() && s.answers(id) {
			_ = s.books[id].record(ctx)
		}
	}
}

// onceClock calls a function some time after it was started, however often it is
// started meanwhile. Its zero value is ready.
type onceClock struct {
	mu      sync.Mutex
	timer   *time.Timer // nil when nothing is due
	stopped bool
}

func (c *onceClock) start(after time.Duration, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil || c.stopped {
		return
	}
	c.timer = time.AfterFunc(after, func() {
		c.mu.Lock()
		c.timer = nil
		stopped := c.stopped
		c.mu.Unlock()
		if !stopped {
			fn()
		}
	})
}

// stop makes start do nothing. A call that has begun is not waited for.
func (c *onceClock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
