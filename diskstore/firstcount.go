package diskstore

import (
	"context"
	"sync"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// firstCount keeps the result of the first count of a tier, which Open begins, so that other
// work at the load of a model needs no listing of its own.
type firstCount struct {
	mu     sync.Mutex
	found  *tally           // nil until the first count has ended
	recent []tier.Info      // files to read ahead, most recent first; nil once taken
	latest *recency.Recents // full pages for Latest; nil once taken
	done   chan struct{}
}

// wanted collects the files of a first count that other work needs. A nil wanted collects
// nothing.
type wanted struct{ recent, latest *recency.Recents }

func (w *wanted) add(info tier.Info) {
	if w == nil {
		return
	}
	w.recent.Add(info)
	if info.Class == pagefile.ClassPage {
		w.latest.Add(info)
	}
}

func newFirstCount() *firstCount { return &firstCount{done: make(chan struct{})} }

// begin returns a collector of the files of at most some bytes to read ahead, and of some of
// the latest pages, which are exact; nil after the first count has ended. fingerprints are those of
// Store.fingerprints.
func (f *firstCount) begin(bytes int64, pages int, fingerprints []pagefile.Key) *wanted {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return nil
	}
	w := new(wanted)
	if bytes > 0 {
		w.recent = recency.ToRead(bytes, fingerprints...)
	}
	if pages > 0 {
		w.latest = recency.Latest(fingerprints[0], pages)
	}
	return w
}

// end keeps the result of a count if the count is the first.
func (f *firstCount) end(found *tally, w *wanted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return
	}
	f.found, f.recent, f.latest = found, w.recent.Order(), w.latest
	close(f.done)
}

// result returns the result of the first count, or nil before the count has ended.
func (f *firstCount) result() *tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// takeRecent returns the files to read ahead, once.
func (f *firstCount) takeRecent() []tier.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	recent := f.recent
	f.recent = nil
	return recent
}

// recentFiles returns the files to read ahead, until they are taken.
func (f *firstCount) recentFiles() []tier.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.recent
}

// takeLatest returns the latest full pages, once, and then nil.
func (f *firstCount) takeLatest() *recency.Recents {
	f.mu.Lock()
	defer f.mu.Unlock()
	latest := f.latest
	f.latest = nil
	return latest
}

// awaitFirst waits for the first count of a tier, and counts if no count runs.
func (lv *level) awaitFirst(ctx context.Context) (*tally, error) {
	first := lv.first
	// Open has begun the local collection, which begins the remote one.
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
	if first.result() == nil { // the collections could not count, or skipped a tier that was down
		if _, err := lv.count(ctx, nil); err != nil {
			return nil, err
		}
	}
	return first.result(), nil
}
