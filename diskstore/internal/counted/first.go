package counted

import (
	"context"
	"sync"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// First keeps the result of the first count of a tier, which Open begins, so that other
// work at the load of a model needs no listing of its own.
type First struct {
	mu      sync.Mutex
	found   *Tally      // nil until the first count has ended
	recent  []tier.Info // files to read ahead, most recent first; nil once taken
	latest  []tier.Info // the latest full pages, most recent first; nil once taken
	through []tier.Info // files that may have to be written through, most recent first; nil once taken
	done    chan struct{}
}

// wanted collects the files of a first count that other work needs. A nil wanted collects nothing.
type wanted struct{ recent, latest, through *recency.Recents }

func (w *wanted) add(info tier.Info) {
	if w == nil {
		return
	}
	w.recent.Add(info)
	w.through.Add(info)
	if info.Class == pagefile.ClassPage {
		w.latest.Add(info)
	}
}

func newFirst() *First { return &First{done: make(chan struct{})} }

// begin returns a collector of the files that Options name; nil after the first count has ended.
func (f *First) begin(opt Options) *wanted {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return nil
	}
	w := new(wanted)
	if opt.ReadAheadBytes > 0 {
		w.recent = recency.ToRead(opt.ReadAheadBytes, opt.Pages.Fingerprints()...)
	}
	if opt.LatestPages > 0 {
		w.latest = recency.Latest(opt.Pages.Exact, opt.LatestPages)
	}
	if opt.ThroughPages > 0 {
		w.through = recency.Latest(opt.Pages.Exact, opt.ThroughPages)
	}
	return w
}

// end keeps the result of a count if the count is the first.
func (f *First) end(found *Tally, w *wanted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		return
	}
	f.found, f.recent, f.latest, f.through = found, w.recent.Order(), w.latest.Order(), w.through.Order()
	close(f.done)
}

// Result returns the result of the first count, or nil before the count has ended.
func (f *First) Result() *Tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// Recent returns the files to read ahead, until they are taken.
func (f *First) Recent() []tier.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.recent
}

// TakeRecent returns the files to read ahead, once.
func (f *First) TakeRecent() []tier.Info { return f.take(&f.recent) }

// TakeLatest returns the latest full pages, once.
func (f *First) TakeLatest() []tier.Info { return f.take(&f.latest) }

// TakeThrough returns the files that may have to be written through, once.
func (f *First) TakeThrough() []tier.Info { return f.take(&f.through) }

func (f *First) take(files *[]tier.Info) []tier.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := *files
	*files = nil
	return taken
}

// AwaitFirst waits for the first count, which a job of one of some queues makes, and counts if no job does.
func (t *Tier) AwaitFirst(ctx context.Context, queues ...*work.Queue) (*Tally, error) {
	for _, queue := range queues {
		select {
		case <-t.First.done:
			return t.First.Result(), nil
		default:
		}
		select {
		case <-t.First.done:
		case <-queue.Done():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if t.First.Result() == nil { // the jobs could not count, or skipped a tier that was down
		if _, err := t.Count(ctx, nil); err != nil {
			return nil, err
		}
	}
	return t.First.Result(), nil
}
