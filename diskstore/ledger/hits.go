package ledger

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
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

// Hit adds hits of one fingerprint.
func (l *Ledger) Hit(fingerprint pagefile.Key, hits Hits) {
	if l.Hits == nil {
		l.Hits = make(map[string]Hits)
	}
	name := fingerprint.String()
	l.Hits[name] = l.Hits[name].plus(hits)
	l.limitHits()
}

// limitHits forgets the least recent ones of too many.
func (l *Ledger) limitHits() {
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
func (l *Ledger) dropBadHits() {
	maps.DeleteFunc(l.Hits, func(name string, h Hits) bool {
		_, err := pagefile.ParseKey(name)
		return err != nil || h.Pages < 0 || h.Pages > mostHits
	})
	l.limitHits()
}

// AllHits is the sum over all fingerprints.
func (l *Ledger) AllHits() Hits {
	var sum Hits
	for _, h := range l.Hits {
		sum = sum.plus(h)
	}
	return sum
}

// Hit counts a page that was read.
func (b *Book) Hit(fingerprint pagefile.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hits[fingerprint] = b.hits[fingerprint].plus(Hits{Pages: 1, Last: b.now()})
}

// UnrecordedHits reports whether there are hits that the ledger does not have.
func (b *Book) UnrecordedHits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hits) > 0
}

// settleHitsLocked forgets hits that the ledger has.
func (b *Book) settleHitsLocked(recorded map[pagefile.Key]Hits) {
	for fp, done := range recorded {
		if h := b.hits[fp]; h.Pages > done.Pages {
			b.hits[fp] = Hits{Pages: h.Pages - done.Pages, Last: h.Last}
		} else {
			delete(b.hits, fp)
		}
	}
}

// Forget removes a fingerprint's hits, when all that it had is removed.
func (b *Book) Forget(ctx context.Context, fingerprint pagefile.Key) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	b.mu.Lock()
	_, known := b.last.Hits[fingerprint.String()]
	delete(b.hits, fingerprint)
	b.mu.Unlock()
	if !known {
		return nil
	}
	return b.change(ctx, func(l *Ledger, _ string, _ pending) error {
		delete(l.Hits, fingerprint.String())
		return nil
	})
}
