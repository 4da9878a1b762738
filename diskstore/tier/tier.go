package tier

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Names of the tiers in Ref.Tier, logs and Stats.
const (
	RAM    = "ram"
	Local  = "local"
	Remote = "remote"
)

// Info describes a file in a tier. All methods describe a file in the same way.
type Info struct {
	pagefile.Name
	Bytes    int64     // length
	Physical int64     // disk space occupied; positive for a file that is not empty
	Used     time.Time // recency
}

// Shard is a part of one fingerprint's files: the pages or the tails whose key begins with First.
// Tails of earlier versions are in the shard of their parent's first byte. In a root of a million
// pages each shard has a few thousand files.
type Shard struct {
	Fingerprint pagefile.Key
	Class       pagefile.Class
	First       byte
}

// ShardOf returns the shard of a page or tail.
func ShardOf(n pagefile.Name) Shard {
	if n.Parent != (pagefile.Key{}) {
		return Shard{n.Fingerprint, n.Class, n.Parent[0]}
	}
	return Shard{n.Fingerprint, n.Class, n.Key[0]}
}

// ClaimLife is the largest age of a process's claim in the ledger. Where locks do not work, a
// dead process's claim expires at that age; a living process renews its claim before.
const ClaimLife = 24 * time.Hour

// Space is the space of a filesystem, in bytes.
type Space = vfs.Space

// Aside describes the files of a root other than pages and tails. Manifests, locks and the
// ledger, a few KiB for each fingerprint, are not included.
type Aside struct {
	TempFiles, QuarantineFiles int
	TempBytes, QuarantineBytes int64 // physical

	// OrphanBytes are the bytes of TempBytes that no living process has claimed, as far as
	// known.
	OrphanBytes int64

	// Living has the ids of processes that have not ended, this one included, as far as known.
	// Held has the ids of Living whose process certainly holds its lock.
	Living, Held map[string]bool
}

// Branch notes that a page or tail begins with a prefix. The key of a prefix of n tokens is the
// chain key that a page of these tokens would have; the key of the empty prefix is the parent's.
type Branch struct {
	Fingerprint, Prefix pagefile.Key

	// Longer marks a prefix that has its share of branches: others are at prefixes that continue
	// it. The other fields are zero then.
	Longer bool

	Class  pagefile.Class
	Key    pagefile.Key
	Tokens int // of the page or tail
	Leads  pagefile.Leads
}

// Name is the name of the branch's page or tail.
func (b Branch) Name() pagefile.Name {
	return pagefile.Name{Fingerprint: b.Fingerprint, Class: b.Class, Key: b.Key}
}

// OldBranch is a branch of a full page as versions before prefixes left it.
type OldBranch struct {
	Fingerprint, Parent, Key pagefile.Key
	Leads                    [16]byte
}

// Name is the name of the branch's page.
func (b OldBranch) Name() pagefile.Name {
	return pagefile.Name{Fingerprint: b.Fingerprint, Class: pagefile.ClassPage, Key: b.Key}
}

// Older is a Tier that may hold tails and branches of versions before prefixes.
type Older interface {
	// OldTails lists the tails of parent that are in their old place, in no order.
	OldTails(ctx context.Context, fingerprint, parent pagefile.Key) ([]Info, error)

	// OldBranches lists old branches, most at most, in no order.
	OldBranches(ctx context.Context, fingerprint pagefile.Key, most int) ([]OldBranch, error)

	// RemoveOldBranch removes an old branch. RemoveOldBranch is idempotent.
	RemoveOldBranch(ctx context.Context, branch OldBranch) error
}

// Tier is one place that holds pages. Implementations are safe for concurrent use, by this
// process and by others on the same root.
//
// Two errors have a meaning in every method. ErrNotFound means that the file does not exist;
// it is permanent and says nothing about the tier's health. ErrNoSpace is permanent until a
// file is removed. Any other error may be transient. A method whose context ends returns soon
// after, possibly before the effect of the operation is known.
type Tier interface {
	// Stat describes one file. For a name whose place has a directory, a link or another entry
	// that is not a regular file, Stat returns ErrNotFound.
	Stat(ctx context.Context, name pagefile.Name) (Info, error)

	// Leading describes names in their order, up to the first missing file. With an error, Leading
	// returns the files found before the error.
	Leading(ctx context.Context, names []pagefile.Name) ([]Info, error)

	// Open opens a file for reading. The content never changes, and stays readable after
	// Remove if the filesystem allows it.
	Open(ctx context.Context, name pagefile.Name) (Blob, error)

	// Reopen does as Open, past this machine's cached copy of the file, as far as the
	// filesystem allows it.
	Reopen(ctx context.Context, name pagefile.Name) (Blob, error)

	// Create begins writing a file. No file is visible under name before Commit. Any number of
	// uploads of one name may run at the same time: all of them have the same content, and the
	// last Commit wins.
	Create(ctx context.Context, name pagefile.Name) (Upload, error)

	// Persist makes the name of a visible file durable, even if another process made the file
	// visible: a file whose upload has committed survives a power cut after Persist. Persist is
	// idempotent.
	Persist(ctx context.Context, name pagefile.Name) error

	// Remove deletes the judged file and reports whether the file existed. Remove is
	// idempotent. A file that has replaced the judged one stays, and the error is ErrReplaced.
	// With a name alone, Remove deletes any file of that name.
	Remove(ctx context.Context, judged Info) (bool, error)

	// Touch sets a file's recency. Touch is idempotent.
	Touch(ctx context.Context, name pagefile.Name, used time.Time) error

	// Quarantine moves the judged file away from all look-ups and keeps it for a person to
	// look at. Quarantine is idempotent and reports whether that file existed: a file that has
	// replaced it stays. With a name alone, Quarantine moves any file of that name, and with
	// Bytes of NotRegular an entry that is not a regular file. Quarantine deletes nothing: when
	// quarantine is full, the error is ErrQuarantineFull.
	Quarantine(ctx context.Context, judged Info, reason string) (bool, error)

	// EmptyQuarantine durably removes the files in quarantine and returns their physical
	// bytes.
	EmptyQuarantine(ctx context.Context) (int64, error)

	// AddBranch notes a branch. With durable a branch survives a power cut, also one that another
	// process has added, and without it may get lost. A branch may stay after its page was removed. AddBranch is idempotent.
	AddBranch(ctx context.Context, branch Branch, durable bool) error

	// Branches lists the branches at a prefix, in no order, those with Longer set left out. longer
	// reports whether there is one.
	Branches(ctx context.Context, fingerprint, prefix pagefile.Key) (branches []Branch, longer bool, err error)

	// ListBranches lists the branches at all prefixes that begin with first, in no order, those
	// with Longer set left out.
	ListBranches(ctx context.Context, fingerprint pagefile.Key, first byte) ([]Branch, error)

	// RemoveBranch removes a branch. RemoveBranch is idempotent.
	RemoveBranch(ctx context.Context, branch Branch) error

	// SyncRemoved makes the removal of files by Remove durable: before SyncRemoved a power cut
	// may bring them back. SyncRemoved is idempotent.
	SyncRemoved(ctx context.Context, names []pagefile.Name) error

	// Shards lists the shards of all fingerprints' pages and tails, in no order. Shards made
	// during the call may be missing.
	Shards(ctx context.Context) ([]Shard, error)

	// ListShard lists each file of one shard once, in no order. Files made or removed during the
	// call may or may not be listed.
	ListShard(ctx context.Context, shard Shard) ([]Info, error)

	// Aside describes the files below the root other than pages and tails, after removing
	// temporary files of dead processes. A file in quarantine was moved there from a page's
	// place, so callers that count pages as well call Aside last.
	Aside(ctx context.Context) (Aside, error)

	// Account durably replaces the content of the tier's ledger by the result of change, and
	// returns the new content. The content is empty without a readable ledger. No other
	// process changes the ledger meanwhile. With a nil change the ledger is only read.
	//
	// change gets the content and the id under which this process has claims. Account returns
	// an error of change unchanged, and the ledger is unchanged then; after any other error
	// the ledger may have changed.
	//
	// Account calls change at least once. Account may call change again with newer content
	// when the previous result was certainly not written (an object store's If-Match failed);
	// the last result is written. After an error change may run after Account has returned.
	Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error)

	// Fingerprints lists all fingerprints that have a directory, in no order.
	Fingerprints(ctx context.Context) ([]pagefile.Key, error)

	// DropFingerprint removes a fingerprint's manifest, branches and empty directories.
	// Directories with pages stay. DropFingerprint is idempotent.
	DropFingerprint(ctx context.Context, fingerprint pagefile.Key) error

	// Space describes the tier's filesystem.
	Space(ctx context.Context) (Space, error)

	// Now returns the time of the filesystem's clock, which may be another machine's. Now may
	// write a file to read the clock. Without space for that file, Now returns the error and a
	// time that the clock has passed.
	Now(ctx context.Context) (time.Time, error)

	// Left returns the disk space of uploads that were given up and could not be removed yet,
	// at most, in bytes. Left does no I/O.
	Left() int64

	// Lock makes the caller the only one to collect this tier, over all processes, until
	// release is called or the process dies. Lock returns ErrLocked at once when another
	// caller has the lock.
	Lock(ctx context.Context) (release func(), err error)

	// Close releases the tier's resources. Other methods return ErrClosed afterwards.
	Close() error
}

// Blob is a file open for reading.
type Blob interface {
	pagefile.Source // Size returns Bytes of Info

	// Info describes the file at the time of its opening.
	Info() Info

	// Close releases the file. Close does not wait for the tier.
	Close()
}

// Upload is a file being written.
type Upload interface {
	// Write appends p. After an error only Abort may follow.
	Write(ctx context.Context, p []byte) error

	// Written returns the bytes that Write has appended, at most.
	Written() int64

	// Seal makes the content durable, and nothing visible: it checks the length and syncs. Seal
	// takes as long as the device; other uploads, lists and removals do not wait for it. After a
	// failed Seal the written data is discarded, never synced again. After Seal only Commit or
	// Abort may follow.
	Seal(ctx context.Context) error

	// Commit makes the file visible, as by a rename, and sets the file's recency to used. Commit
	// first seals an upload that is not sealed, and after Seal is quick: it syncs nothing. The
	// name is durable after Tier.Persist. A non-zero Info together with an error means that the
	// file is visible and whole. A directory, link or other entry in the name's place goes to
	// quarantine.
	Commit(ctx context.Context, used time.Time) (Committed, error)

	// Abort discards the written data. After Commit, Abort does nothing.
	Abort()
}

// Store makes an upload a durable file of the given name: Seal, Commit and Persist. A non-zero
// Info together with an error means that the file is visible and whole but perhaps not durable.
func Store(ctx context.Context, t Tier, up Upload, name pagefile.Name, used time.Time) (Committed, error) {
	if err := up.Seal(ctx); err != nil {
		return Committed{}, err
	}
	done, err := up.Commit(ctx, used)
	if err != nil {
		return done, err
	}
	return done, t.Persist(ctx, name)
}

// Committed is the result of a Commit.
type Committed struct {
	Info
	Replaced bool  // a file of that name existed before
	Freed    int64 // physical bytes of that file
}

// NotRegular is the Info.Bytes of an entry that has a page's name and is not a regular file.
const NotRegular = -1

// ErrReplaced reports that another file has replaced the judged one.
var ErrReplaced = errors.New("diskstore: file has been replaced")

// ErrQuarantineFull reports that a file stays in its place because quarantine is full.
var ErrQuarantineFull = errors.New("diskstore: quarantine is full, kvtier repair makes room in it")

// UnsafeRoot reports the errors of CheckRoot that need a person.
func UnsafeRoot(err error) bool {
	return errors.Is(err, ErrRootSymlink) || errors.Is(err, ErrRootNotDir) ||
		errors.Is(err, ErrRootOwner) || errors.Is(err, ErrRootMode)
}

// Doubtful reports whether reading the file again, after opening it anew, may succeed.
func Doubtful(err error) bool {
	var wrongPlace *pagefile.Misplaced
	return errors.Is(err, pagefile.ErrDamaged) || errors.As(err, &wrongPlace) || errors.Is(err, ErrStale)
}

// ErrStale reports an open file that its server no longer knows: another machine has removed
// or replaced the file. Opening the name again shows which.
var ErrStale = errors.New("diskstore: file was removed or replaced by another machine")

// NoAnswer reports whether err is the error of a tier that did not answer in time.
func NoAnswer(err error) bool {
	return errors.Is(err, vfs.ErrHung) || errors.Is(err, ErrTierTimeout)
}
