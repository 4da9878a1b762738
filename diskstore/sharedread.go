package diskstore

import (
	"context"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// sharing lets Reads of one page that run at the same time share one: several slots
// that are given the same prompt together have it read, checked and decoded once,
// and copied for the others.
type sharing struct {
	mu      sync.Mutex
	reading map[pagefile.Name]*sharedRead
}

// sharedRead is a Read on its way. What it is of does not change.
type sharedRead struct {
	of     *sharing
	ref    Ref
	tokens []int32
	layout pagefile.Layout
	rows   []byte // the buffer of who reads, which is its own again after the last copy

	done chan struct{} // closed when it has ended
	good bool          // rows hold the page

	// Those who wait for it and then copy; of sharing.mu.
	waiting int
	left    chan struct{} // closed by the last; nil before it has ended
}

// join returns the Read of the same page that runs already, to take a copy from. When
// there is none it returns nil and a function that the caller ends its own with,
// saying whether its buffer holds the page; that returns when all copies are taken.
// A Read of the same file that asks for something else is not shared and not waited
// for.
func (s *sharing) join(name pagefile.Name, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte) (other *sharedRead, end func(good bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.reading[name]; r != nil {
		same := r.ref.Parent == ref.Parent && r.ref.Start == ref.Start && r.layout.Equal(layout) && slices.Equal(r.tokens, tokens)
		if !same {
			return nil, func(bool) {}
		}
		r.waiting++
		return r, nil
	}
	r := &sharedRead{of: s, ref: ref, tokens: tokens, layout: layout, rows: buf, done: make(chan struct{})}
	if s.reading == nil {
		s.reading = make(map[pagefile.Name]*sharedRead)
	}
	s.reading[name] = r
	return nil, func(good bool) {
		s.mu.Lock()
		delete(s.reading, name) // nobody joins from here on
		r.good, r.left = good, make(chan struct{})
		if r.waiting == 0 {
			close(r.left)
		}
		s.mu.Unlock()
		close(r.done)
		<-r.left
	}
}

// leave ends what join began for one that waits.
func (r *sharedRead) leave() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.waiting--; r.waiting == 0 && r.left != nil {
		close(r.left)
	}
}

// copyTo waits for the Read to end and copies what it has read. It reports whether
// that is the page: otherwise whoever waited reads for himself.
func (r *sharedRead) copyTo(ctx context.Context, buf []byte) bool {
	defer r.leave()
	select {
	case <-r.done:
	case <-ctx.Done():
		return false
	}
	if r.good {
		copy(buf, r.rows)
	}
	return r.good
}
