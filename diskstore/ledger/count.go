package ledger

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// counting is the state of the ledger and of the book at the start of a count.
type counting struct {
	added  int64            // bytes added to the ledger by all processes
	ours   int64            // part of added by this process
	Listed int64            // bytes added by this process until all was listed: these are in the count
	claims map[string]Claim // of all processes
	Living map[string]bool  // ids of processes that had not ended then, as far as known; nil where nobody knows
	Held   map[string]bool  // ids of Living whose process certainly holds its lock
	Began  time.Time
	Pages  int64 // found
}

// BeginCount is called before the first file is listed, and before living processes are looked
// up: a process that begins later keeps its claim.
func (b *Book) BeginCount(ctx context.Context) (counting, error) {
	c := counting{Began: time.Now()}
	if err := b.Record(ctx); err != nil {
		return c, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.added, c.ours, c.claims = b.last.Added, b.total-b.used, b.last.Claims
	return c, nil
}

// EndCount replaces the ledger's bytes by the listed bytes, and adds bytes that the listing may have missed.
func (b *Book) EndCount(ctx context.Context, c counting, bytes int64) error {
	took := time.Since(c.Began)
	b.updating.Lock()
	defer b.updating.Unlock()
	return b.change(ctx, func(l *Ledger, id string, p pending) error {
		added := l.Added - c.added - (c.Listed - c.ours)
		if l.Added < c.added { // the ledger was lost meanwhile
			added = l.Added
		}
		// The listing may have missed bytes that other processes added.
		l.Bytes = max(0, bytes+added)
		for other, claim := range l.Claims {
			if other != id && c.ended(other, claim, p.now) {
				// All of its bytes were listed; the day of their writing is unknown.
				l.wrote(min(dayOf(claim.Since), dayOf(p.now)), claim.Bytes)
				delete(l.Claims, other)
			}
		}
		if l.Counts == 0 { // other processes' claims are unknown as well
			for other := range c.Living {
				if _, ok := l.Claims[other]; !ok && other != id { // this process asks for its own
					l.setClaim(other, b.chunk(), p.now)
				}
			}
		}
		if l.Reuse != nil {
			l.Reuse.Fade(c.Pages)
		}
		l.Counts, l.Counted, l.Took = l.Counts+1, p.now, took
		return nil
	})
}

// ended reports whether a claim belongs to a process that had ended when the count began. The
// process's id decides; where locks do not work, or nobody knows who lives, the claim's age does,
// possibly by another host's clock.
func (c counting) ended(id string, now Claim, at time.Time) bool {
	was, known := c.claims[id]
	switch {
	case !known || c.Held[id]:
		return false
	case c.Living != nil && !c.Living[id]:
		return true
	}
	return now.Since.Equal(was.Since) && at.Sub(now.Since).Abs() > tier.ClaimLife
}
