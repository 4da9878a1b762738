package team

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// remote is an engine in memory that several stores use. Over its budget it evicts the least recently used
// pages by itself, as Valkey does.
type remote struct {
	*tiertest.Map
	files bool // a directory on NFS
	most  int  // pages

	mu sync.Mutex
	traffic
	looked, names int // calls of Find, and the names in them
}

// traffic counts what goes to an engine and comes from it. The ledger and lists for room are left out.
type traffic struct {
	requests int // the bytes of pages apart
	in, out  int // pages
}

func (r *remote) Close() error { return nil } // for the other stores

// FindAtOnce is that of Valkey, or of a directory.
func (r *remote) FindAtOnce() int {
	if r.files {
		return 16
	}
	return 1000
}

func (r *remote) count(count func(*traffic)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	count(&r.traffic)
}

func request(*traffic) {}

// looks returns how often pages were looked up so far, and how many.
func (r *remote) looks() (calls, names int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looked, r.names
}

func (r *remote) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos, err := r.Map.Find(ctx, names, leading)
	asked := len(names)
	if missing := slices.IndexFunc(infos, func(i tier.Info) bool { return !i.Found() }); leading && missing >= 0 {
		asked = missing + 1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked++
	r.names += asked
	if !r.files {
		asked = 1
	}
	r.requests += asked
	return infos, err
}

func (r *remote) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	r.count(request)
	blob, err := r.Map.Open(ctx, name, anew)
	return counting{blob, r}, err
}

type counting struct {
	tier.Blob
	of *remote
}

// ReadAt counts the page where the first byte of its rows is read.
func (c counting) ReadAt(ctx context.Context, p []byte, off int64) error {
	c.of.count(func(t *traffic) {
		if off <= pagefile.PageAlign && pagefile.PageAlign < off+int64(len(p)) {
			t.out++
		}
	})
	return c.Blob.ReadAt(ctx, p, off)
}

func (r *remote) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	up, err := r.Map.Create(ctx, name)
	return upload{up, r}, err
}

type upload struct {
	tier.Upload
	of *remote
}

func (u upload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	done, err := u.Upload.Commit(ctx, used)
	u.of.count(func(t *traffic) {
		if done.Class == pagefile.ClassPage {
			t.in++
		}
	})
	return done, err
}

func (r *remote) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	r.count(request)
	return r.Map.Touch(ctx, name, used)
}

func (r *remote) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	r.count(request)
	return r.Map.Remove(ctx, judged)
}

// AddBranch notes nothing: no page is looked for that has only the beginning of a block.
func (r *remote) AddBranch(context.Context, tier.Branch, bool) error {
	r.count(request)
	return nil
}

func (r *remote) Branches(context.Context, pagefile.Key, []byte) ([]tier.Branch, error) {
	r.count(request)
	return nil, nil
}

// evictShare is the divisor of the budget that is evicted at a time.
const evictShare = 64

// evict makes room while no method runs.
func (r *remote) evict() {
	if len(r.Files) <= r.most {
		return
	}
	names := slices.SortedFunc(maps.Keys(r.Files), func(a, b pagefile.Name) int { return r.Files[a].Used.Compare(r.Files[b].Used) })
	for _, name := range names[:len(names)-r.most+r.most/evictShare] {
		if name.Class == pagefile.ClassPage {
			delete(r.Files, name)
		}
	}
}
