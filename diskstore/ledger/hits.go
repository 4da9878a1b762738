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

// Hits counts the reads of one fingerprint's pages from a tier by all processes, as far as
// they have recorded them; reads of pages in memory count as well. Hits is for people: no
// decision uses it, and unrecorded hits of a killed process are lost.
type Hits struct {
	Pages int64     `json:"pages"` // reads of pages and tails
	Last  time.Time `json:"last"`  // zero for never
}

const (
	// maxHits is the number of fingerprints with hits in a ledger, some 30 KiB; of more, the least recently
	// read are dropped. mostHits keeps sums of a forged ledger's values from overflowing.
	maxHits  = 256
	mostHits = math.MaxInt64 / 4
)

func (h Hits) plus(o Hits) Hits {
	h.Pages = min(h.Pages+o.Pages, mostHits)
	if o.Last.After(h.Last) {
		h.Last = o.Last
	}
	return h
}

// minus returns h without hits that are among them.
func (h Hits) minus(o Hits) Hits {
	h.Pages = max(0, h.Pages-o.Pages)
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

// limitHits drops the least recently read fingerprints beyond maxHits.
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

// dropBadHits removes values that no store has written. Bad hits do not make a ledger damaged.
func (l *Ledger) dropBadHits() {
	maps.DeleteFunc(l.Hits, func(name string, h Hits) bool {
		_, err := pagefile.ParseKey(name)
		return err != nil || h.Pages < 0 || h.Pages > mostHits
	})
	l.limitHits()
}

// AllHits returns the sum over all fingerprints.
func (l *Ledger) AllHits() Hits {
	var sum Hits
	for _, h := range l.Hits {
		sum = sum.plus(h)
	}
	return sum
}

// Hit counts one read of a page.
func (b *Book) Hit(fingerprint pagefile.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hits[fingerprint] = b.hits[fingerprint].plus(Hits{Pages: 1, Last: b.now()})
}

// settleHitsLocked subtracts hits that are in the ledger now.
func (b *Book) settleHitsLocked(recorded map[pagefile.Key]Hits) {
	for fp, done := range recorded {
		if h := b.hits[fp].minus(done); h.Pages > 0 {
			b.hits[fp] = h
		} else {
			delete(b.hits, fp)
		}
	}
}

// Forget removes a fingerprint's hits, after all of its pages were removed.
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
