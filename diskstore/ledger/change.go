package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// pending is a book's changes that are not recorded in the ledger yet.
type pending struct {
	free, inflight, used, wasted, freed, counts int64
	written                                     map[string]int64
	hits                                        map[pagefile.Key]Hits
	reuse                                       reuse.Counts
	evicted, now                                time.Time
}

// settle records the pending changes in l.
func (p pending) settle(l *Ledger, id string) {
	l.Bytes += p.used
	l.Added += p.used
	if l.Counts == p.counts {
		l.Bytes = max(0, l.Bytes-p.freed)
	}
	l.setClaim(id, p.inflight+p.free, p.now)
	for day, n := range p.written {
		l.wrote(day, n)
	}
	for fp, hits := range p.hits {
		l.Hit(fp, hits)
	}
	if p.reuse.Some() {
		sum := l.Uses().Plus(p.reuse)
		l.Reuse = &sum
	}
	if p.evicted.After(l.Evicted) || tier.Beyond(l.Evicted, p.now) {
		l.Evicted = p.evicted
	}
}

// less returns the pending changes without those of done, an earlier attempt to record them.
func (p pending) less(done pending) pending {
	p.used -= done.used
	p.written, p.hits = maps.Clone(p.written), maps.Clone(p.hits)
	for day, n := range done.written {
		p.written[day] -= n
	}
	for fp, hits := range done.hits {
		p.hits[fp] = p.hits[fp].minus(hits)
	}
	p.reuse = p.reuse.Minus(done.reuse)
	return p
}

// errNotAsked reports a tier that returned success without calling change.
var errNotAsked = errors.New("diskstore: Account of the tier changed nothing, and returned no error")

// errGivenUp reports a change that the tier calls after its caller has left. Its figures are
// old: later changes may have been recorded.
var errGivenUp = errors.New("diskstore: change of the ledger was given up")

// attempt is a function that was given to Account, and the result of its last call. The tier may
// call that function several times, and once more after Account has returned.
type attempt struct {
	pending pending

	mu      sync.Mutex
	over    bool // Account has returned
	called  bool
	claimed int64  // this process's claim afterwards
	content []byte // the ledger afterwards
	err     error  // of apply
}

func (a *attempt) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.called = a.called || !a.over
	return !a.over
}

func (a *attempt) set(claimed int64, content []byte, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claimed, a.content, a.err = claimed, content, err
}

// end is called when Account has returned. end returns errNotAsked if no call has begun; none
// begins any more.
func (a *attempt) end() (claimed int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if !a.called {
		return 0, errNotAsked
	}
	return a.claimed, a.err
}

// made reports whether the attempt has written this content.
func (a *attempt) made(content []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.content != nil && bytes.Equal(a.content, content)
}

// unrecorded returns the part of p that content, the ledger's, does not have yet. Where another
// process has changed the ledger since a change in doubt, p may count twice.
func unrecorded(p pending, content []byte, doubts []*attempt) pending {
	for _, doubt := range doubts {
		if doubt.made(content) {
			return p.less(doubt.pending)
		}
	}
	return p
}

// change records the pending changes and then the changes that apply makes, unless apply returns an error.
// Both start again from the ledger's content at each call by the tier. b.updating is held.
func (b *Book) change(ctx context.Context, apply func(l *Ledger, id string, p pending) error) error {
	b.mu.Lock()
	p := pending{
		free: b.freeLocked(), inflight: b.inflight + b.tier.Left(), used: b.used, wasted: b.wasted, freed: b.freed, counts: b.last.Counts,
		written: maps.Clone(b.written), hits: maps.Clone(b.hits), reuse: b.reuse, evicted: b.evicted, now: b.now(),
	}
	doubts := slices.Clone(b.doubts)
	b.mu.Unlock()
	last := &attempt{pending: p}
	content, err := b.tier.Account(ctx, func(content []byte, id string) ([]byte, error) {
		if !last.begin() {
			return nil, errGivenUp
		}
		l, err := open(content)
		unrecorded(p, content, doubts).settle(l, id)
		if err == nil {
			err = apply(l, id, p)
		}
		if err == nil {
			content, err = l.Encode()
		}
		if err != nil {
			content = nil
		}
		last.set(l.Claims[id].Bytes, content, err)
		return content, err
	})
	claimed, aerr := last.end()
	err = cmp.Or(err, aerr)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		// Unless apply refused or did not run, the ledger may have changed despite the error. The
		// next change finds out, or records added bytes again, too many at worst. Freed bytes
		// must not be subtracted again.
		if aerr == nil {
			b.freed -= p.freed
			b.doubts = append(b.doubts, last)
			b.doubts = b.doubts[max(0, len(b.doubts)-maxDoubts):]
		}
		return err
	}
	b.claimed, b.doubts = claimed, nil
	b.used -= p.used
	b.wasted -= p.wasted
	for day, n := range p.written {
		if b.written[day] -= n; b.written[day] == 0 {
			delete(b.written, day)
		}
	}
	l := Read(content)
	if b.freed -= p.freed; l.Counts != p.counts {
		b.freed = 0
	}
	b.settleHitsLocked(p.hits)
	b.reuse = b.reuse.Minus(p.reuse)
	b.evicted, b.updated = time.Time{}, p.now
	b.seeLocked(l)
	return nil
}
