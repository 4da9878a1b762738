package ledger

import "github.com/kvtier/kvtier/diskstore/pagefile"

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
