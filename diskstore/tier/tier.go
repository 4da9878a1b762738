package tier

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/vfs"
)

// Names of the tiers, as they appear in Ref.Tier, logs and Stats.
const (
	RAM    = "ram"
	Local  = "local"
	Remote = "remote"
)

// Info describes a file in a tier.
type Info struct {
	pagefile.Name
	Bytes    int64     // length
	Physical int64     // disk space occupied
	Used     time.Time // recency
}

// Shard is a part of one fingerprint's files: the pages whose key, or the tails
// whose parent, begins with a byte. A root of a million pages has a few thousand
// files in each.
type Shard struct {
	Fingerprint pagefile.Key
	Class       pagefile.Class
	First       byte
}

// ShardOf returns the part that a page or tail is listed in.
func ShardOf(n pagefile.Name) Shard {
	if n.Class == pagefile.ClassTail {
		return Shard{n.Fingerprint, pagefile.ClassTail, n.Parent[0]}
	}
	return Shard{n.Fingerprint, n.Class, n.Key[0]}
}

// ClaimLife is how old a process's claim in the ledger may get. Where locks do not work,
// claims of dead processes end with it; a living process renews its own before.
const ClaimLife = 24 * time.Hour

// Space is the room of a filesystem, in bytes.
type Space = vfs.Space

// Aside is what a root holds beside pages and tails. Manifests, locks and the
// ledger, a few KiB for each fingerprint, are not in it.
type Aside struct {
	TempFiles, QuarantineFiles int
	TempBytes, QuarantineBytes int64 // physical

	// OrphanBytes are those of TempBytes that no living process has claimed, as far
	// as can be told.
	OrphanBytes int64

	// Living has the ids of processes that have not ended, this one included, as
	// far as can be told. Held has those of them that hold their lock for sure.
	Living, Held map[string]bool
}

// Tier is one place that holds pages. Implementations are safe for concurrent
// use, by this process and by others on the same root.
//
// Two errors have a meaning in every method: ErrNotFound, the file is not
// there, which is permanent and says nothing about the tier's health; and
// ErrNoSpace, which is permanent until something is removed. Any other error
// may be transient. A method whose context ends returns soon after, possibly
// before its effect is known.
type Tier interface {
	// Stat describes one file. A name whose place is taken by something other
	// than a regular file is ErrNotFound.
	Stat(ctx context.Context, name pagefile.Name) (Info, error)

	// Leading describes names in order up to the first that is not there. With
	// an error it returns those found before it.
	Leading(ctx context.Context, names []pagefile.Name) ([]Info, error)

	// Open opens a file for reading. Its content never changes, and stays
	// readable after Remove where the filesystem allows it.
	Open(ctx context.Context, name pagefile.Name) (Blob, error)

	// Reopen is Open past what this machine has cached of the file, as far as the
	// filesystem lets it.
	Reopen(ctx context.Context, name pagefile.Name) (Blob, error)

	// Create begins writing a file. Nothing is visible under name before
	// Commit. Any number of uploads of one name may run at once: all of them
	// hold the same content, the last Commit wins.
	Create(ctx context.Context, name pagefile.Name) (Upload, error)

	// Persist makes the name of a file that is visible durable, whoever made it
	// visible. It is idempotent.
	Persist(ctx context.Context, name pagefile.Name) error

	// Remove deletes the file that was judged and reports whether it was there. It
	// is idempotent. Another file, which has replaced it, stays, and the error is
	// ErrReplaced. With a name alone it deletes whatever file is there.
	Remove(ctx context.Context, judged Info) (bool, error)

	// Touch sets a file's recency. It is idempotent.
	Touch(ctx context.Context, name pagefile.Name, used time.Time) error

	// Quarantine takes the file that was judged out of sight and keeps it for a
	// person to look at. It is idempotent, and reports whether that file was there:
	// another, which has replaced it, stays. With a name alone it takes whatever is
	// there, with Bytes of NotRegular what is no regular file. It deletes nothing:
	// with as many files as quarantine keeps it returns ErrQuarantineFull for one more.
	Quarantine(ctx context.Context, judged Info, reason string) (bool, error)

	// EmptyQuarantine removes what Quarantine has kept, durably, and returns how
	// many physical bytes that was.
	EmptyQuarantine(ctx context.Context) (int64, error)

	// Tails lists the tails whose parent is the given key, in no order.
	Tails(ctx context.Context, fingerprint, parent pagefile.Key) ([]Info, error)

	// SyncRemoved makes it durable that files are gone which Remove removed:
	// before that a power cut may bring them back. It is idempotent.
	SyncRemoved(ctx context.Context, names []pagefile.Name) error

	// Shards lists the parts that the pages and tails of all fingerprints are
	// listed in, in no order. One that comes later may be missing.
	Shards(ctx context.Context) ([]Shard, error)

	// ListShard lists the files of one shard, in no order. Files that come or
	// go meanwhile may or may not be in it.
	ListShard(ctx context.Context, shard Shard) ([]Info, error)

	// Aside lists what is below the root beside pages and tails. It removes
	// temporary files of dead processes first. A file in quarantine was moved
	// there from its page's place: whoever counts both lists this last.
	Aside(ctx context.Context) (Aside, error)

	// Account replaces the content of the tier's ledger by that which change makes
	// of it, durably, and returns the new content. The content is empty where there
	// is no ledger that can be read. No other process changes the ledger meanwhile.
	// An error of change is returned as it is, and nothing has changed then; after
	// any other error the ledger may have. change is given the id under which this
	// process has claims. Account calls change at least once, and may call it again
	// with newer content where what it returned before was not written for sure (an
	// object store's If-Match failed); what it returns last is written. After an error
	// change may run after Account has returned. With a nil change the ledger is only
	// read.
	Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error)

	// Fingerprints lists all fingerprints that have a directory, in no order.
	Fingerprints(ctx context.Context) ([]pagefile.Key, error)

	// DropFingerprint removes a fingerprint's manifest and empty directories.
	// Pages keep it from removing what holds them. It is idempotent.
	DropFingerprint(ctx context.Context, fingerprint pagefile.Key) error

	// Space reports on the filesystem the tier is on.
	Space(ctx context.Context) (Space, error)

	// Now is what the filesystem's clock shows, which is another machine's perhaps.
	// It may write a file to tell by. Where there is no room for one it returns the
	// error, and a time that the clock has passed.
	Now(ctx context.Context) (time.Time, error)

	// Left is how much disk space uploads at most take that were given up and
	// could not be removed yet, in bytes. It does no I/O.
	Left() int64

	// Lock makes the caller the only one to collect this tier, over all
	// processes, until release is called or the process dies. It returns
	// ErrLocked at once when another has the lock.
	Lock(ctx context.Context) (release func(), err error)

	// Close gives up what the tier holds open. Other methods fail afterwards.
	Close() error
}

// Blob is a file open for reading.
type Blob interface {
	pagefile.Source

	// Info describes the file as it was when opened.
	Info() Info

	// Close releases the file. It does not wait for the tier.
	Close()
}

// Upload is a file being written.
type Upload interface {
	// Write appends p. After an error only Abort may follow.
	Write(ctx context.Context, p []byte) error

	// Written is how many bytes Write has appended, at most.
	Written() int64

	// Commit makes the file durable and visible: it checks the length, syncs
	// the content, renames, and syncs the directory, in this order, and gives
	// the file the recency used. When it returns nil the file survives a power
	// cut. After a failed sync the written data is thrown away, never synced
	// again. A non-zero Info together with an error means that the file is
	// visible and whole but perhaps not durable. What has the name and is no
	// regular file goes to quarantine.
	Commit(ctx context.Context, used time.Time) (Committed, error)

	// Abort throws away what was written. After Commit it does nothing.
	Abort()
}

// Committed is the result of a Commit.
type Committed struct {
	Info
	Replaced bool  // a file of that name was there before
	Freed    int64 // physical bytes of that file
}

// NotRegular is Info.Bytes of something that has a page's name and is no regular
// file.
const NotRegular = -1

// ErrReplaced reports a file that was to go and has been replaced.
var ErrReplaced = errors.New("diskstore: file has been replaced")

// ErrQuarantineFull reports that a file was left where it is.
var ErrQuarantineFull = errors.New("diskstore: quarantine is full, kvtier repair makes room in it")

// UnsafeRoot reports the errors of CheckRoot that need a person.
func UnsafeRoot(err error) bool {
	return errors.Is(err, ErrRootSymlink) || errors.Is(err, ErrRootNotDir) ||
		errors.Is(err, ErrRootOwner) || errors.Is(err, ErrRootMode)
}

// Doubtful reports whether an error of reading a file may be gone when the file is
// opened anew.
func Doubtful(err error) bool {
	var wrongPlace *pagefile.Misplaced
	return errors.Is(err, pagefile.ErrDamaged) || errors.As(err, &wrongPlace) || errors.Is(err, ErrStale)
}

// ErrStale reports an open file that its server does not know any more: another
// machine has removed or replaced it. Opening it again tells.
var ErrStale = errors.New("diskstore: file was removed or replaced by another machine")

// NoAnswer reports whether err is that of a tier which did not answer in time.
func NoAnswer(err error) bool {
	return errors.Is(err, vfs.ErrHung) || errors.Is(err, ErrTierTimeout)
}
