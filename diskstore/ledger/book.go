package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// ChunkBytes is how much a process claims at once: enough that recording a
	// claim, two syncs, costs little beside writing what was claimed.
	ChunkBytes = 256 << 20

	// chunkShare is the share of a budget that one claim takes at most, unless
	// a single page is larger.
	chunkShare = 64
)

// ErrWriteCap reports that as much as Options.WritePerDay allows has been
// written to the local tier on this UTC day.
var ErrWriteCap = errors.New("diskstore: the day's writes are used up")

// ErrNotCounted reports that nothing can be claimed below a budget because
// nobody has counted what is there.
var ErrNotCounted = errors.New("diskstore: files have not been counted yet")

// medium is where a ledger is kept: a tier.
type medium interface {
	// Account is as in Tier.
	Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error)

	// Left is how many bytes uploads take that were given up, at most.
	Left() int64
}

// Book is one process's part of a tier's ledger: what it has claimed, and what
// it did that is not recorded yet.
type Book struct {
	tier   medium
	Budget int64 // bytes on the disk; 0 for none
	perDay int64 // bytes written in a UTC day; 0 for any
	now    func() time.Time

	updating sync.Mutex // one change of the ledger at a time

	mu       sync.Mutex
	claimed  int64                 // our claim, as recorded
	used     int64                 // of that, in files that are complete
	inflight int64                 // of that, in files being written; Tier.Left comes to it
	wasted   int64                 // of that, written to files that did not become complete: the day's share of it is gone
	total    int64                 // all that ever was used
	freed    int64                 // removed, durably, and not recorded
	written  map[string]int64      // bytes by day, not recorded
	evicted  time.Time             // recency of what was evicted, not recorded
	hits     map[pagefile.Key]Hits // not recorded
	updated  time.Time             // when our claim was recorded last; zero for never
	last     Ledger                // as read or written last
	changed  chan struct{}         // closed when the ledger changes next
}

func NewBook(tier medium, budget, perDay int64, now func() time.Time) *Book {
	return &Book{tier: tier, Budget: budget, perDay: perDay, now: now, written: make(map[string]int64), hits: make(map[pagefile.Key]Hits), changed: make(chan struct{})}
}

// Room is space set aside for one file. Either finish or cancel ends it; what
// comes later does nothing.
type Room struct {
	b     *Book
	bytes int64
	spent int64 // written to files that came to nothing
	ended bool
}

// Reserve sets aside room for a file of n bytes before it is written. It returns
// ErrNoSpace when the budget has no such room, ErrNotCounted when that is not
// known yet, ErrWriteCap, or an error of the tier.
func (b *Book) Reserve(ctx context.Context, n int64) (*Room, error) {
	n = pagefile.AlignUp(n)
	if r, ok := b.take(n); ok {
		return r, nil
	}
	b.updating.Lock()
	defer b.updating.Unlock()
	if r, ok := b.take(n); ok { // another goroutine has claimed meanwhile
		return r, nil
	}
	err := b.change(ctx, func(l *Ledger, id string, p pending) error {
		ask, err := b.ask(l, max(0, n-p.free))
		if err == nil {
			l.setClaim(id, p.inflight+p.free+ask, p.now)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r, ok := b.take(n)
	if !ok {
		return nil, fmt.Errorf("%d bytes were claimed and are used: %w", n, tier.ErrNoSpace)
	}
	return r, nil
}

// take sets n bytes aside from what is claimed already, if that is enough.
func (b *Book) take(n int64) (*Room, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freeLocked() < n {
		return nil, false
	}
	b.inflight += n
	return &Room{b: b, bytes: n}, true
}

// freeLocked is what is claimed and not used. A claim that may have been taken
// for a dead process's is none.
func (b *Book) freeLocked() int64 {
	if tier.WallBetween(b.updated, b.now()) > tier.ClaimLife/2 {
		return 0
	}
	return max(0, b.claimed-b.used-b.wasted-b.inflight-b.tier.Left())
}

// ask returns how much may be claimed from l, at least n bytes.
func (b *Book) ask(l *Ledger, n int64) (int64, error) {
	most := b.chunk()
	if b.Budget > 0 {
		if l.Counts == 0 {
			return 0, ErrNotCounted
		}
		free := b.Budget - l.Figure()
		if n > free {
			return 0, fmt.Errorf("%d bytes more in a budget of %d, of which %d are used or reserved: %w", n, b.Budget, l.Figure(), tier.ErrNoSpace)
		}
		most = min(most, free)
	}
	if b.perDay > 0 {
		// All that is claimed may be written today.
		free := b.perDay - l.Written[dayOf(b.now())] - l.Claimed()
		if n > free {
			return 0, fmt.Errorf("%d bytes more on a day of at most %d: %w", n, b.perDay, ErrWriteCap)
		}
		most = min(most, free)
	}
	return max(n, most), nil
}

// Appeared counts a file of so many bytes whose reservation was cancelled.
func (b *Book) Appeared(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += bytes
	b.total += bytes
	b.written[dayOf(b.now())] += bytes
}

// Finish ends a reservation that a file of so many bytes came of. Filesystems that
// compress or allocate late tell less than will be so; at least what was
// reserved counts. A file that it replaced counts until the next count: somebody
// else may have removed it just before, who subtracts it then.
func (r *Room) Finish(bytes int64) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.endLocked()
	r.b.written[dayOf(r.b.now())] += r.bytes
	bytes = max(r.bytes, bytes)
	r.b.used += bytes
	r.b.total += bytes
}

// Wasted records that n bytes were written to a file that came to nothing. They count
// as written in a day, and of what is claimed for that day as much is gone.
func (r *Room) Wasted(n int64) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.ended {
		r.spent += pagefile.AlignUp(n)
	}
}

// endLocked gives back the reservation. r.b.mu is held.
func (r *Room) endLocked() {
	r.ended = true
	r.b.inflight -= r.bytes
	if r.spent > 0 {
		r.b.wasted += r.spent
		r.b.written[dayOf(r.b.now())] += r.spent
	}
}

// Cancel ends a reservation that no file came of.
func (r *Room) Cancel() {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.ended {
		r.endLocked()
	}
}

// Release records that files of n bytes are gone for good, removed by the caller:
// counts is what b.counts returned before the first of them was.
func (b *Book) Release(n, counts int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if counts == b.last.Counts {
		b.freed += n
	}
}

// EvictedUpTo records that a file last used at the given time was evicted.
func (b *Book) EvictedUpTo(used time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if used.After(b.evicted) {
		b.evicted = used
	}
}

// Counts returns ledger.Counts as last seen.
func (b *Book) Counts() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.Counts
}

// Figure returns what is on the disk at most, as far as was last recorded, and
// whether that is known.
func (b *Book) Figure() (bytes int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.Figure(), b.last.Counts > 0
}

// Today returns what was written on this day, as far as is known here.
func (b *Book) Today() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	day := dayOf(b.now())
	return b.last.Written[day] + b.written[day]
}

// Added returns all that this process ever added.
func (b *Book) Added() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// Horizon returns the recency up to which files have been evicted.
func (b *Book) Horizon() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.evicted.After(b.last.Evicted) {
		return b.evicted
	}
	return b.last.Evicted
}

// Changes returns a channel that is closed when this process next changes the
// ledger, or sees it changed.
func (b *Book) Changes() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// pending is what a book has to tell the ledger.
type pending struct {
	free, inflight, used, wasted, freed, counts int64
	written                                     map[string]int64
	hits                                        map[pagefile.Key]Hits
	evicted, now                                time.Time
}

// settle records what is pending in l.
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
	if p.evicted.After(l.Evicted) || tier.Beyond(l.Evicted, p.now) {
		l.Evicted = p.evicted
	}
}

// errNotAsked reports a tier that says it has changed the ledger and did not ask for the
// new content.
var errNotAsked = errors.New("diskstore: Account of the tier changed nothing, and returned no error")

// attempt is the result of the last call of a function that was given to Account. The tier
// may call that function several times, and once more after Account has returned.
type attempt struct {
	mu      sync.Mutex
	called  bool
	claimed int64 // our claim afterwards
	err     error // of apply
}

func (a *attempt) set(claimed int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.called, a.claimed, a.err = true, claimed, err
}

// get returns errNotAsked before the first call.
func (a *attempt) get() (claimed int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.called {
		return 0, errNotAsked
	}
	return a.claimed, a.err
}

// change records what is pending and then what apply does, if that returns nil. Both
// begin anew with the content of the ledger whenever the tier asks. b.updating is held.
func (b *Book) change(ctx context.Context, apply func(l *Ledger, id string, p pending) error) error {
	b.mu.Lock()
	p := pending{
		free: b.freeLocked(), inflight: b.inflight + b.tier.Left(), used: b.used, wasted: b.wasted, freed: b.freed, counts: b.last.Counts,
		written: maps.Clone(b.written), hits: maps.Clone(b.hits), evicted: b.evicted, now: b.now(),
	}
	b.mu.Unlock()
	last := new(attempt)
	content, err := b.tier.Account(ctx, func(content []byte, id string) ([]byte, error) {
		l := Read(content)
		p.settle(l, id)
		err := apply(l, id, p)
		last.set(l.Claims[id].Bytes, err)
		if err != nil {
			return nil, err
		}
		return l.Encode()
	})
	claimed, aerr := last.get()
	if err == nil {
		err = aerr
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		// Unless apply refused, the ledger may have changed all the same. What
		// was added is recorded again, too much at worst. What was freed must
		// not be subtracted once more.
		if aerr == nil || errors.Is(aerr, errNotAsked) {
			b.freed -= p.freed
		}
		return err
	}
	b.claimed = claimed
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
	b.evicted, b.updated = time.Time{}, p.now
	b.seeLocked(l)
	return nil
}

func (b *Book) seeLocked(l *Ledger) {
	b.last = *l
	close(b.changed)
	b.changed = make(chan struct{})
}

// Suppose makes figure return what was found by a tool that records nothing.
func (b *Book) Suppose(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = Ledger{Counts: max(1, b.last.Counts), Bytes: bytes}
}

// Read returns the ledger as it is recorded.
func (b *Book) Read(ctx context.Context) (*Ledger, error) {
	content, err := b.tier.Account(ctx, nil)
	return Read(content), err
}

// Refresh reads the ledger, and remembers it.
func (b *Book) Refresh(ctx context.Context) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	l, err := b.Read(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.Counts != b.last.Counts {
		b.freed = 0
	}
	b.seeLocked(l)
	return nil
}

// Record tells the ledger what is pending.
func (b *Book) Record(ctx context.Context) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	return b.change(ctx, func(*Ledger, string, pending) error { return nil })
}

// Look reads the ledger as reserve sees it: with what is pending, as far as that can be
// recorded. A full disk takes no record and still has to be collected.
func (b *Book) Look(ctx context.Context) error {
	if err := b.Record(ctx); err == nil {
		return nil
	}
	return b.Refresh(ctx)
}

// GiveBack records what is pending, and gives back what is claimed and not used: what
// ends now without another word, as by SIGKILL, leaves a claim of its own files alone.
func (b *Book) GiveBack(ctx context.Context) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	b.mu.Lock()
	idle := b.claimed == 0 && b.used == 0 && b.freed == 0 && len(b.written) == 0 && len(b.hits) == 0
	spare := &Room{b: b, bytes: b.freeLocked()} // nobody takes it meanwhile
	b.inflight += spare.bytes
	b.mu.Unlock()
	defer spare.Cancel()
	if idle {
		return nil
	}
	err := b.change(ctx, func(l *Ledger, id string, p pending) error {
		l.setClaim(id, p.inflight-spare.bytes, p.now)
		return nil
	})
	if err != nil { // the ledger may have changed all the same
		b.mu.Lock()
		defer b.mu.Unlock()
		b.claimed -= spare.bytes
	}
	return err
}

// counting is what the ledger and the book were when a count began.
type counting struct {
	added  int64            // to the ledger, by all
	ours   int64            // of that, by this process
	Listed int64            // by this process when all was listed: this the count has seen
	claims map[string]Claim // of all
	Living map[string]bool  // the ids of processes that had not ended then, as far as can be told
	Held   map[string]bool  // those of them that hold their lock for sure
	Began  time.Time
}

// BeginCount must come before the first file is listed, and before it is looked
// which processes live: one that begins later has its claim.
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

// EndCount replaces the ledger's figure by what was listed, and what may have
// been missed.
func (b *Book) EndCount(ctx context.Context, c counting, bytes int64) error {
	took := time.Since(c.Began)
	b.updating.Lock()
	defer b.updating.Unlock()
	return b.change(ctx, func(l *Ledger, id string, p pending) error {
		added := l.Added - c.added - (c.Listed - c.ours)
		if l.Added < c.added { // the ledger was lost meanwhile
			added = l.Added
		}
		// What others added may have been missed.
		l.Bytes = max(0, bytes+added)
		for other, claim := range l.Claims {
			if other != id && c.ended(other, claim, p.now) {
				// All that it wrote has been listed; when, nobody knows.
				l.wrote(min(dayOf(claim.Since), dayOf(p.now)), claim.Bytes)
				delete(l.Claims, other)
			}
		}
		if l.Counts == 0 { // nor is it known what others have claimed
			for other := range c.Living {
				if _, ok := l.Claims[other]; !ok {
					l.setClaim(other, b.chunk(), p.now)
				}
			}
		}
		l.Counts, l.Counted, l.Took = l.Counts+1, p.now, took
		return nil
	})
}

// ended reports whether a claim is of a process that had ended when the count
// began. Its id tells, and where locks do not work the claim's age: by a clock that
// is another host's, perhaps.
func (c counting) ended(id string, now Claim, at time.Time) bool {
	was, known := c.claims[id]
	switch {
	case !known || c.Held[id]:
		return false
	case !c.Living[id]:
		return true
	}
	return now.Since.Equal(was.Since) && at.Sub(now.Since).Abs() > tier.ClaimLife
}

// chunk is the most that is claimed at once for pages that are smaller.
func (b *Book) chunk() int64 {
	if b.Budget > 0 {
		return min(ChunkBytes, b.Budget/chunkShare)
	}
	return ChunkBytes
}

// Restart forgets what is claimed in a ledger that another has taken the place of.
func (b *Book) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claimed, b.updated = 0, time.Time{}
	b.seeLocked(new(Ledger))
}
