package counted

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Aside moves a file to quarantine in two steps: the second one makes the move durable.
type Aside interface {
	MoveAside(ctx context.Context, info tier.Info, reason string) (bool, error)
	SyncAside(path string)
	Path(name pagefile.Name) string
}

// Options are the place of a Tier in a store. Functions may be nil.
type Options struct {
	// Far tells that operations of the tier may take long or hang: no other operation waits for
	// one, and listings are repeated where files appeared or went meanwhile.
	Far bool

	// Aside moves files to quarantine, of a tier that is not far.
	Aside Aside

	// ReadAheadBytes and LatestPages are the files of Pages that the first count keeps: the most
	// recently used ones of at most some bytes, and some of the latest exact full pages.
	ReadAheadBytes int64
	LatestPages    int
	ThroughPages   int // the latest files of Pages.Exact that the first count keeps to be written through
	Pages          *names.Pages

	// Appeared is told of each file that appears, at this moment. Visible is told after that,
	// before the name is durable.
	Appeared func(pagefile.Name)
	Visible  func(context.Context, pagefile.Name)

	// Removed is told of each file that was removed.
	Removed func(pagefile.Name)
}

// Tier is a tier whose files are counted.
type Tier struct {
	Tier   tier.Disk
	Book   *ledger.Book // this process's part of the tier's ledger
	First  *First
	Listed func() // is called for each file that a listing finds; nil for nobody

	opt      Options
	use      use
	counting chan struct{} // holds a token while one goroutine of this process counts

	// commit is held shared while a file appears or is removed and the numbers change, and exclusively while
	// the result of a listing is counted; in a tier that is not far also during the listing.
	commit sync.RWMutex
}

// New returns the tier t with its ledger.
func New(t tier.Disk, book *ledger.Book, opt Options) *Tier {
	return &Tier{Tier: t, Book: book, First: newFirst(), opt: opt, counting: make(chan struct{}, 1)}
}

// Upload stores an encoded page durably in its reserved room, and counts the file.
func (t *Tier) Upload(ctx context.Context, name pagefile.Name, e *pagefile.Encoded, room *ledger.Room, used time.Time) error {
	up, err := t.Tier.Create(ctx, name)
	if err != nil {
		return err
	}
	defer func() { room.Wasted(up.Written()) }() // no effect after the upload became a file
	defer up.Abort()
	if err := e.WriteTo(func(p []byte) error { return up.Write(ctx, p) }); err != nil {
		return err
	}
	return t.Commit(ctx, up, room, used)
}

// Commit makes an upload a durable file in its reserved room, and counts the file. Counts,
// evictions and other uploads wait for the rename alone, not for the syncs before and after it.
func (t *Tier) Commit(ctx context.Context, up tier.Upload, room *ledger.Room, used time.Time) error {
	if err := up.Seal(ctx); err != nil {
		return err
	}
	done, err := t.appear(ctx, up, room, used)
	if err != nil {
		return err
	}
	defer t.use.settled(done)
	if !t.opt.Far {
		ctx = context.WithoutCancel(ctx) // a visible page is stored, even if the caller has left
	}
	if t.opt.Visible != nil {
		t.opt.Visible(ctx, done.Name)
	}
	return t.Tier.Persist(ctx, done.Name)
}

// appear makes a sealed upload visible and counts the file. The caller makes the file's name
// durable, and calls settled after that.
func (t *Tier) appear(ctx context.Context, up tier.Upload, room *ledger.Room, used time.Time) (tier.Committed, error) {
	t.commit.RLock()
	defer t.commit.RUnlock()
	done, err := up.Commit(ctx, used)
	// A failed Commit may have made the file visible nevertheless.
	if done.Bytes > 0 {
		t.appeared(done)
		room.Finish(done.Physical)
	}
	if err != nil {
		t.use.settled(done)
	}
	return done, err
}

func (t *Tier) appeared(done tier.Committed) {
	if t.opt.Appeared != nil {
		t.opt.Appeared(done.Name)
	}
	t.use.commit(done)
}

// AppearedLate counts a file that appeared after its Commit was given up.
func (t *Tier) AppearedLate(done tier.Committed) {
	t.commit.RLock()
	defer t.commit.RUnlock()
	t.appeared(done)
	t.use.settled(done)
	t.Book.Appeared(done.Physical)
}

// Drop removes a file and stops counting it. removed describes the file, with 0 bytes when
// another process removed the file first. The room is free after the removal has settled. A
// file that was replaced after info was read stays, and Drop returns tier.ErrReplaced.
func (t *Tier) Drop(ctx context.Context, info tier.Info) (removed tier.Info, err error) {
	return t.DropIf(ctx, info, asLarge(info))
}

// asLarge reports whether a file has the size of info.
func asLarge(info tier.Info) func(now tier.Info) bool {
	return func(now tier.Info) bool { return now.Bytes == info.Bytes }
}

// DropUnused does as Drop, and also keeps a file that was used after info was read.
func (t *Tier) DropUnused(ctx context.Context, info tier.Info) (removed tier.Info, err error) {
	return t.DropIf(ctx, info, func(now tier.Info) bool { return now.Bytes == info.Bytes && now.Used.Equal(info.Used) })
}

// DropIf does as Drop for a file whose present Info satisfies same.
func (t *Tier) DropIf(ctx context.Context, info tier.Info, same func(now tier.Info) bool) (removed tier.Info, err error) {
	return t.dropIf(ctx, info, same, t.use.moved)
}

// dropIf does as DropIf, and has gone count the removed file.
func (t *Tier) dropIf(ctx context.Context, info tier.Info, same func(now tier.Info) bool, gone func(tier.Info)) (removed tier.Info, err error) {
	none := tier.Info{Name: info.Name}
	lock := sync.Locker(&t.commit)
	if t.opt.Far { // it may hang, and other operations do not wait
		lock = t.commit.RLocker()
	}
	lock.Lock()
	defer lock.Unlock()
	now, err := tier.Stat(ctx, t.Tier, info.Name)
	if errors.Is(err, tier.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	if !same(now) {
		return none, tier.ErrReplaced
	}
	if a, ok := t.Tier.(tier.Accompanied); ok {
		now.Physical += a.Beside(ctx, now.Name)
	}
	ours, err := t.Tier.Remove(ctx, now)
	if !ours {
		return none, err
	}
	gone(now)
	if t.opt.Removed != nil {
		t.opt.Removed(now.Name)
	}
	return now, err
}

// Quarantine moves the file that info describes to quarantine and stops counting it as a page.
// In a far tier Quarantine does not wait for a running count, because a look-up would
// wait as well; that count may be wrong by this file.
func (t *Tier) Quarantine(ctx context.Context, info tier.Info, reason string) (bool, error) {
	if t.opt.Aside == nil {
		moved, err := t.Tier.Quarantine(ctx, info, reason)
		if moved {
			t.use.moved(info)
		}
		return moved, err
	}
	moved, err := t.moveAside(ctx, info, reason)
	if moved {
		t.opt.Aside.SyncAside(t.opt.Aside.Path(info.Name))
	}
	return moved, err
}

// moveAside moves a file to quarantine and stops counting it as a page. The caller makes the move durable.
func (t *Tier) moveAside(ctx context.Context, info tier.Info, reason string) (bool, error) {
	t.commit.RLock()
	defer t.commit.RUnlock()
	moved, err := t.opt.Aside.MoveAside(ctx, info, reason)
	if moved {
		t.use.moved(info)
	}
	return moved, err
}

// Hold keeps files from appearing, and others from being counted, until release is called. A file may
// go meanwhile from a far tier alone.
func (t *Tier) Hold() (release func()) {
	t.commit.Lock()
	return t.commit.Unlock
}

// Removal is a set of files that this process has removed from a tier and that the tier's
// ledger still counts.
type Removal struct {
	Names []pagefile.Name
	Bytes int64 // physical

	of       *Tier
	counts   int64 // number of the ledger's counts before the first file was removed
	fleeting int64 // bytes of files that Drop has removed
}

// NewRemoval begins a removal, before its first file is removed.
func (t *Tier) NewRemoval() *Removal {
	return &Removal{of: t, counts: t.Book.State().Counts}
}

// Add adds a result of Drop.
func (r *Removal) Add(removed tier.Info) {
	if removed.Bytes > 0 {
		r.Names = append(r.Names, removed.Name)
		r.Bytes += removed.Physical
	}
}

// Drop does as Tier.Drop, and adds the file, which counts until the removal has settled: a power cut may
// bring it back. It is for removals that settle at once.
func (r *Removal) Drop(ctx context.Context, info tier.Info) error {
	removed, err := r.of.dropIf(ctx, info, asLarge(info), func(now tier.Info) {
		r.of.use.remove(now)
		r.fleeting += now.Physical
	})
	if err == nil {
		r.Add(removed)
	}
	return err
}

// Settle makes the removal durable and frees the room in the ledger. After a failure the room
// stays taken until the next count. Settle ends each Removal.
func (r *Removal) Settle(ctx context.Context) bool {
	defer r.of.use.durable(r.fleeting)
	if len(r.Names) == 0 || r.of.Tier.SyncRemoved(ctx, r.Names) != nil {
		return false
	}
	r.of.Book.Release(r.Bytes, r.counts)
	return true
}

// recordPatience bounds the time in which Record makes a removal durable.
const recordPatience = 2 * time.Second

// Record settles the removal and tells other processes, also after ctx has ended.
func (r *Removal) Record(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordPatience)
	defer cancel()
	if r.Settle(ctx) {
		_ = r.of.Book.Record(ctx) // after an error, recorded with the next claim
	}
}
