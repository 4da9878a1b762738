package ledger

import (
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/reuse"
)

// Uses returns Reuse, zero for none.
func (l *Ledger) Uses() (c reuse.Counts) {
	if l.Reuse != nil {
		c = *l.Reuse
	}
	return c
}

// Uses returns the uses of pages by all processes, as far as known.
func (b *Book) Uses() reuse.Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last.Uses().Plus(b.reuse)
}

// Stored counts a page that was stored for the first time, as far as known.
func (b *Book) Stored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reuse.Store()
}

// Use counts the use of a page after an idle time, and returns the page's number of uses.
func (b *Book) Use(uses int, idle time.Duration) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reuse.Use(uses, idle)
}

// Returned does as Use for a page that had left the tier.
func (b *Book) Returned(uses int, idle time.Duration, room reuse.Room) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reuse.Return(uses, idle, room)
}
