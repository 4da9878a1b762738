package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// ChunkBytes is the size of one claim: large enough that recording a claim, two syncs,
	// costs little in comparison with writing the claimed bytes.
	ChunkBytes = 256 << 20

	// chunkShare is the divisor of a budget that gives the largest claim, unless a single page is larger.
	chunkShare = 64

	// claimsShare is the divisor of a limit that gives the most that all claims together take beyond
	// the files being written, and of the rest of that which one claim takes: processes that only
	// wait keep their claims, and must not keep the room of pages.
	claimsShare = 4
)

// ErrWriteCap reports that processes have written Options.WritePerDay bytes to the local tier
// on this UTC day.
var ErrWriteCap = errors.New("diskstore: the day's writes are used up")

// ErrNotCounted reports that claims below a budget are impossible because the tier's files are not counted.
var ErrNotCounted = errors.New("diskstore: files have not been counted yet")

type medium interface {
	// Account is Tier.Account.
	Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error)

	// Left is Tier.Left: at most the bytes of given-up uploads that are still on the disk.
	Left() int64
}

// Book is one process's part of a tier's ledger: its claim, and its changes that are not recorded yet.
type Book struct {
	tier   medium
	Budget int64 // bytes on the disk; 0 for none
	perDay int64 // bytes written in a UTC day; 0 for no limit
	now    func() time.Time

	updating sync.Mutex // one change of the ledger at a time

	mu       sync.Mutex
	claimed  int64                 // this process's claim, as recorded
	used     int64                 // part of the claim in complete files
	inflight int64                 // part of the claim in files being written, without Tier.Left
	wasted   int64                 // part of the claim written to files that were not completed; it is used up for the day
	total    int64                 // sum of all bytes ever used
	freed    int64                 // bytes removed, durably, and not recorded
	written  map[string]int64      // bytes by day, not recorded
	evicted  time.Time             // recency of the last evicted file, not recorded
	hits     map[pagefile.Key]Hits // not recorded
	reuse    reuse.Counts          // not recorded
	updated  time.Time             // time of this process's last record; zero for never
	last     Ledger                // as last read or written
	counted  time.Time             // by this machine's clock: when last was first seen with another number of counts
	changed  chan struct{}         // closed at the next change of the ledger

	// doubts are the changes since the last success of which it is not known whether they were written.
	doubts []*attempt
}

// maxDoubts bounds Book.doubts. Bytes of an older change in doubt may count twice.
const maxDoubts = 8

func NewBook(tier medium, budget, perDay int64, now func() time.Time) *Book {
	return &Book{tier: tier, Budget: budget, perDay: perDay, now: now, written: make(map[string]int64), hits: make(map[pagefile.Key]Hits), changed: make(chan struct{})}
}

// Reserve reserves room for a file of n bytes before the file is written. Reserve returns
// tier.ErrNoSpace when the budget has too little room, ErrNotCounted when the tier's files are not
// counted, ErrWriteCap, or an error of the tier.
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

// take reserves n bytes of the present claim, if enough of the claim is free.
func (b *Book) take(n int64) (*Room, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freeLocked() < n {
		return nil, false
	}
	b.inflight += n
	return &Room{b: b, bytes: n}, true
}

// freeLocked returns the free part of the claim, in bytes: 0 for an old claim, which other
// processes may have taken for a dead process's. b.mu is held.
func (b *Book) freeLocked() int64 {
	if tier.WallBetween(b.updated, b.now()) > tier.ClaimLife/2 {
		return 0
	}
	return max(0, b.claimed-b.used-b.wasted-b.inflight-b.tier.Left())
}

// ask returns the number of bytes to claim in l, at least n.
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
		most = min(most, free, spareClaim(b.Budget, l))
	}
	if b.perDay > 0 {
		// All claimed bytes may be written today.
		free := b.perDay - l.Written[dayOf(b.now())] - l.Claimed()
		if n > free {
			return 0, fmt.Errorf("%d bytes more on a day of at most %d: %w", n, b.perDay, ErrWriteCap)
		}
		most = min(most, free, spareClaim(b.perDay, l))
	}
	return max(n, most), nil
}

// spareClaim is the most that a claim takes of a limit beyond its need, in bytes.
func spareClaim(limit int64, l *Ledger) int64 {
	return (limit/claimsShare - l.Claimed()) / claimsShare
}

// Appeared counts a file of the given bytes whose reservation was cancelled.
func (b *Book) Appeared(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += bytes
	b.total += bytes
	b.written[dayOf(b.now())] += bytes
}

// Release records that the caller has durably removed files of n bytes. counts is State.Counts from
// before the first removal.
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
	b.evicted = tier.Later(b.evicted, used)
}

// Figure returns the upper bound of the bytes on the disk, as last recorded, and whether files were counted.
func (b *Book) Figure() (bytes int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.Figure(), b.last.Counts > 0
}

// State is what one process knows of a ledger.
type State struct {
	Counts   int64 // Ledger.Counts, as last read
	InFlight int64 // bytes reserved for files that this process is writing
	Added    int64 // bytes that this process ever added
	Today    int64 // bytes written on this UTC day, as far as known
	Hits     bool  // some hits are not recorded yet

	// Counted is the time at which this process saw that some process had counted the files again;
	// zero for never. No clock but this machine's decides, because clocks of hosts differ.
	Counted time.Time

	// Changed is closed when this process next changes the ledger, or reads a changed one.
	Changed <-chan struct{}
}

// State returns the present state.
func (b *Book) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	day := dayOf(b.now())
	return State{
		Counts: b.last.Counts, InFlight: b.inflight, Added: b.total, Today: b.last.Written[day] + b.written[day],
		Hits: len(b.hits) > 0, Counted: b.counted, Changed: b.changed,
	}
}

// Horizon returns the recency up to which files have been evicted.
func (b *Book) Horizon() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return tier.Later(b.last.Evicted, b.evicted)
}

func (b *Book) seeLocked(l *Ledger) {
	if b.last.Counts > 0 && l.Counts > b.last.Counts {
		b.counted = time.Now()
	}
	b.last = *l
	close(b.changed)
	b.changed = make(chan struct{})
}

// Suppose makes Figure return bytes, for a tool that counts and records nothing.
func (b *Book) Suppose(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = Ledger{Counts: max(1, b.last.Counts), Bytes: bytes, Reuse: b.last.Reuse}
}

// Read returns the recorded ledger.
func (b *Book) Read(ctx context.Context) (*Ledger, error) {
	content, err := b.tier.Account(ctx, nil)
	l, sealed := open(content)
	return l, cmp.Or(err, sealed)
}

// Refresh reads the ledger and keeps its content.
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

// Record records the pending changes in the ledger.
func (b *Book) Record(ctx context.Context) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	return b.change(ctx, func(*Ledger, string, pending) error { return nil })
}

// Look updates the ledger's content as Reserve does: with the pending changes recorded, if
// possible. A full disk takes no record, and still has to be collected.
func (b *Book) Look(ctx context.Context) error {
	if err := b.Record(ctx); err == nil {
		return nil
	}
	return b.Refresh(ctx)
}

// GiveBack records the pending changes and returns the free part of the claim. A process that
// is killed afterwards leaves only the claim of its unfinished files.
func (b *Book) GiveBack(ctx context.Context) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	b.mu.Lock()
	idle := b.claimed == 0 && b.tier.Left() == 0 && b.used == 0 && b.freed == 0 && len(b.written) == 0 && len(b.hits) == 0 && !b.reuse.Some()
	spare := &Room{b: b, bytes: b.freeLocked()} // no other goroutine reserves it meanwhile
	b.inflight += spare.bytes
	b.mu.Unlock()
	defer spare.Cancel()
	if idle {
		return nil
	}
	err := b.change(ctx, func(l *Ledger, id string, p pending) error {
		l.setClaim(id, p.inflight+p.free-spare.bytes, p.now) // p.free: reservations that ended meanwhile
		return nil
	})
	if err != nil { // the ledger may have changed despite the error
		b.mu.Lock()
		defer b.mu.Unlock()
		b.claimed -= spare.bytes
	}
	return err
}

// chunk returns the size of a claim, unless a single page is larger.
func (b *Book) chunk() int64 {
	if b.Budget > 0 {
		return min(ChunkBytes, b.Budget/chunkShare)
	}
	return ChunkBytes
}

// Restart drops the claim, after another ledger has taken the place of this one.
func (b *Book) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claimed, b.updated = 0, time.Time{}
	b.seeLocked(new(Ledger))
}

// Room is space reserved for one file. Either Finish or Cancel ends the reservation; later
// calls of Cancel do nothing.
type Room struct {
	b     *Book
	bytes int64
	spent int64 // written to files that were not completed
	ended bool
}

// Finish ends the reservation of a file that now has the given bytes on the disk. At least the
// reserved bytes count, because filesystems that compress or allocate late report less at
// first. A file that the new one replaced counts until the next count: another process may
// have removed that file just before and subtracts its bytes.
func (r *Room) Finish(bytes int64) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.endLocked()
	r.b.written[dayOf(r.b.now())] += r.bytes
	bytes = max(r.bytes, bytes)
	r.b.used += bytes
	r.b.total += bytes
}

// Wasted records that n bytes were written to a file that was not completed. These bytes count
// as written in the day, and the claim has as many bytes less for the day.
func (r *Room) Wasted(n int64) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.ended {
		r.spent += pagefile.AlignUp(n)
	}
}

// endLocked ends the reservation. r.b.mu is held.
func (r *Room) endLocked() {
	r.ended = true
	r.b.inflight -= r.bytes
	if r.spent > 0 {
		r.b.wasted += r.spent
		r.b.written[dayOf(r.b.now())] += r.spent
	}
}

// Cancel ends a reservation without a file.
func (r *Room) Cancel() {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.ended {
		r.endLocked()
	}
}
