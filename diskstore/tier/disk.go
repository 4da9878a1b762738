package tier

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Disk is a Tier in the directories of a filesystem. An object store is none; OnDisk tells what
// holds for one.
type Disk interface {
	Tier

	// Persist makes the name of a visible file durable, even if another process made the file visible:
	// a file whose upload has committed survives a power cut after Persist. Persist is idempotent.
	Persist(ctx context.Context, name pagefile.Name) error

	// SyncRemoved makes the removal of files by Remove durable: before SyncRemoved a power cut
	// may bring them back. SyncRemoved is idempotent.
	SyncRemoved(ctx context.Context, names []pagefile.Name) error

	// DropFolders removes the empty directories of a fingerprint. DropFolders is idempotent.
	DropFolders(ctx context.Context, fingerprint pagefile.Key) error

	// Aside describes the files below the root other than pages and tails, after removing
	// temporary files of dead processes. A file in quarantine was moved there from a page's
	// place, so callers that count pages as well call Aside last.
	Aside(ctx context.Context) (Aside, error)

	// EmptyQuarantine durably removes the files in quarantine and returns their physical bytes.
	EmptyQuarantine(ctx context.Context) (int64, error)

	// Left returns the disk space of uploads that were given up and could not be removed yet,
	// at most, in bytes. Left does no I/O.
	Left() int64

	// Space describes the tier's filesystem. It is zero where nothing but the budget is a limit.
	Space(ctx context.Context) (Space, error)

	// Now returns the time of the filesystem's clock, which may be another machine's. Now may
	// write a file to read the clock. Without space for that file, Now returns the error and a
	// time that the clock has passed.
	Now(ctx context.Context) (time.Time, error)

	// Lock makes the caller the only one to collect this tier, over all processes, until release is
	// called or the process dies. Lock returns ErrLocked at once when another caller has the lock.
	Lock(ctx context.Context) (release func(), err error)

	// Tombstones replaces the content of a list of pages that left the tier by the result of change, and
	// returns the new content. The content is empty without a readable list. With a nil change the
	// list is only read. The list may be lost in a power cut, and of two changes at the same time
	// one is lost. Readers see a whole list, or anything after a power cut.
	Tombstones(ctx context.Context, change func(content []byte) []byte) ([]byte, error)
}

// Space is the space of a filesystem, in bytes.
type Space = vfs.Space

// Aside describes the files of a root other than pages and tails. Manifests, locks and the
// ledger, a few KiB for each fingerprint, are not included.
type Aside struct {
	TempFiles, QuarantineFiles int
	TempBytes, QuarantineBytes int64 // physical

	// OrphanBytes are the bytes of TempBytes that no living process has claimed, as far as known.
	OrphanBytes int64

	// Living has the ids of processes that have not ended, this one included, as far as known.
	// Held has the ids of Living whose process certainly holds its lock. Both are nil where nobody
	// knows: claims then end by their age alone.
	Living, Held map[string]bool
}

// OnDisk returns t if t is a Disk, and otherwise a Disk on t, an object store. There an upload that
// has committed and a file that was removed stay so in a power cut, uploads that were given up leave
// nothing, files in quarantine count in no budget, and nobody remembers pages that left. Unless t is Collected,
// this machine's clock is the right one, and nothing keeps two processes from collecting at the same time: they
// remove too much, at worst.
func OnDisk(t Tier) Disk {
	if disk, ok := t.(Disk); ok {
		return disk
	}
	return objects{t}
}

type objects struct{ Tier }

func (objects) Persist(context.Context, pagefile.Name) error       { return nil }
func (objects) SyncRemoved(context.Context, []pagefile.Name) error { return nil }
func (objects) DropFolders(context.Context, pagefile.Key) error    { return nil }
func (objects) Aside(context.Context) (Aside, error)               { return Aside{}, nil }
func (objects) EmptyQuarantine(context.Context) (int64, error)     { return 0, nil }
func (objects) Left() int64                                        { return 0 }
func (objects) Space(context.Context) (Space, error)               { return Space{}, nil }

func (o objects) Now(ctx context.Context) (time.Time, error) {
	if t, ok := o.Tier.(Collected); ok {
		return t.Now(ctx)
	}
	return time.Now(), nil
}

func (o objects) Lock(ctx context.Context) (release func(), err error) {
	if t, ok := o.Tier.(Collected); ok {
		return t.Lock(ctx)
	}
	return func() {}, nil
}

// Note is that of a [Noter].
func (o objects) Note(name pagefile.Name, used time.Time) bool { return Note(o.Tier, name, used) }

func (objects) Tombstones(context.Context, func([]byte) []byte) ([]byte, error) { return nil, nil }
