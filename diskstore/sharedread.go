package diskstore

import (
	"context"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// sharing lets concurrent Reads of one page share one read: each page is read, checked and
// decoded once and copied for the others.
type sharing struct {
	mu      sync.Mutex
	reading map[pagefile.Name]*sharedRead
}

// sharedRead is a running Read. Its arguments do not change.
type sharedRead struct {
	wanted
	of   *sharing
	rows []byte // the reader's buffer; the reader may change it after the last copy

	done chan struct{} // closed when the Read has ended
	good bool          // rows hold the page

	// Reads that wait for this one and then copy; sharing.mu guards both fields.
	waiting int
	left    chan struct{} // closed by the last waiting Read; nil before this Read has ended
}

// join returns a running Read of the same page, to take a copy from. Without one, join returns
// nil and a function, end, that the caller calls after its own Read; good says whether the
// caller's buffer holds the page. end returns after all copies are taken. A Read of the same
// file with other arguments is not shared, and join does not wait for it.
func (s *sharing) join(name pagefile.Name, w wanted, buf []byte) (other *sharedRead, end func(good bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.reading[name]; r != nil {
		same := r.ref.Parent == w.ref.Parent && r.ref.Start == w.ref.Start && r.layout.Equal(w.layout) && slices.Equal(r.tokens, w.tokens)
		if !same {
			return nil, func(bool) {}
		}
		r.waiting++
		return r, nil
	}
	r := &sharedRead{wanted: w, of: s, rows: buf, done: make(chan struct{})}
	if s.reading == nil {
		s.reading = make(map[pagefile.Name]*sharedRead)
	}
	s.reading[name] = r
	return nil, func(good bool) {
		s.mu.Lock()
		delete(s.reading, name) // no further Read joins
		r.good, r.left = good, make(chan struct{})
		if r.waiting == 0 {
			close(r.left)
		}
		s.mu.Unlock()
		close(r.done)
		<-r.left
	}
}

// leave ends the wait of one Read that joined.
func (r *sharedRead) leave() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.waiting--; r.waiting == 0 && r.left != nil {
		close(r.left)
	}
}

// copyTo waits for the end of the shared Read and copies its result. copyTo reports whether
// the copy is the page; otherwise the caller reads the page itself.
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
