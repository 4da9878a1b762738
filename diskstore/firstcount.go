package diskstore

import (
	"context"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// firstCount keeps what the first count of a tier found, which Open begins: what
// happens once, when a model is loaded, needs no listing of its own.
type firstCount struct {
	mu     sync.Mutex
	found  *tally      // nil before it has ended
	recent []tier.Info // to be read ahead, most recent first; nil once taken
	done   chan struct{}
}

func newFirstCount() *firstCount { return &firstCount{done: make(chan struct{})} }

// begin returns what collects the files to be read ahead; nil when the first count
// has ended.
func (f *firstCount) begin(fingerprint pagefile.Key, bytes int64) *recents {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil || bytes == 0 {
		return nil
	}
	return newRecents(fingerprint, bytes)
}

// end takes over what a count has found, if it is the first.
func (f *firstCount) end(found *tally, recent *recents) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return
	}
	f.found, f.recent = found, recent.order()
	close(f.done)
}

// result returns what was found; nil before the first count has ended.
func (f *firstCount) result() *tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// takeRecent returns the files to be read ahead, once.
func (f *firstCount) takeRecent() []tier.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	recent := f.recent
	f.recent = nil
	return recent
}

// awaitFirst waits for the first count of a tier, and counts when nobody does.
func (lv *level) awaitFirst(ctx context.Context) (*tally, error) {
	first := lv.first
	// The collections that Open began, of which the local one begins the other.
	for _, above := range lv.s.levels(tier.Local) {
		collecting := above.collecting
		select {
		case <-first.done:
			return first.result(), nil
		default:
		}
		select {
		case <-first.done:
		case <-collecting.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if above == lv {
			break
		}
	}
	if first.result() == nil { // they could not count, or left a tier out that was down
		if _, err := lv.count(ctx, nil); err != nil {
			return nil, err
		}
	}
	return first.result(), nil
}
