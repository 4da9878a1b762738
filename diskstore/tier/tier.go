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

// Found reports whether a look-up has found the file.
func (i Info) Found() bool { return i != Info{} }

// Shard is a part of one fingerprint's files: the pages or the tails whose key begins with First.
// In a root of a million pages each shard has a few thousand files.
type Shard struct {
	Fingerprint pagefile.Key
	Class       pagefile.Class
	First       byte
}

// ShardOf returns the shard of a page or tail.
func ShardOf(n pagefile.Name) Shard { return Shard{n.Fingerprint, n.Class, n.Key[0]} }

// ClaimLife is the largest age of a process's claim in the ledger. Where locks do not work, a
// dead process's claim expires at that age; a living process renews its claim before.
const ClaimLife = 24 * time.Hour

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

// Tier is one place that holds pages. Implementations are safe for concurrent use, by this
// process and by others on the same root.
//
// Two errors have a meaning in every method. ErrNotFound means that the file does not exist;
// it is permanent and says nothing about the tier's health. ErrNoSpace is permanent until a
// file is removed. Any other error may be transient. A method whose context ends returns soon
// after, possibly before the effect of the operation is known.
type Tier interface {
	// Find describes the files of names, in the order of names; the Info of a name without a file
	// is zero. A directory, a link or another entry that is not a regular file is no file. With
	// leading the caller needs the files before the first missing one: Find may leave out those
	// after it, and may take a file for granted that is between two others: only Open then tells that it is
	// missing, and its Info is a guess. With an error, Find returns the files found before the error.
	Find(ctx context.Context, names []pagefile.Name, leading bool) ([]Info, error)

	// Open opens a file for reading, with anew past this machine's cached copy of the file, as far as that is
	// possible. The content never changes, and stays readable after Remove if the filesystem allows it.
	Open(ctx context.Context, name pagefile.Name, anew bool) (Blob, error)

	// Create begins writing a file. No file is visible under name before Commit. Any number of
	// uploads of one name may run at the same time: all of them hold the same page, and the last
	// Commit wins. It also replaces a file that was there before, which may be damaged.
	Create(ctx context.Context, name pagefile.Name) (Upload, error)

	// Touch sets a file's recency. Touch is idempotent.
	Touch(ctx context.Context, name pagefile.Name, used time.Time) error

	// Remove deletes the judged file, that of exactly these Bytes and this Used, and reports
	// whether the file existed. Remove is idempotent. A file that has replaced the judged one
	// stays, and the error is ErrReplaced. With a name alone, Remove deletes any file of that name.
	Remove(ctx context.Context, judged Info) (bool, error)

	// Quarantine moves the judged file away from all look-ups and keeps it for a person to look at.
	// Quarantine is idempotent and reports whether that file existed: a file that has replaced it
	// stays. With a name alone, Quarantine moves any file of that name, and with Bytes of NotRegular an
	// entry that is not a regular file. Quarantine deletes nothing: when quarantine has as many files
	// as the tier keeps, the judged file stays and the error is ErrQuarantineFull.
	Quarantine(ctx context.Context, judged Info, reason string) (bool, error)

	// Survey lists all fingerprints that have any file, and the shards of their pages and tails, in
	// no order. Shards made during the call may be missing.
	Survey(ctx context.Context) ([]pagefile.Key, []Shard, error)

	// ListShard lists each file of one shard once, in no order. Files made or removed during the
	// call may or may not be listed.
	ListShard(ctx context.Context, shard Shard) ([]Info, error)

	// AddBranch notes a branch, unless it is noted. With durable a branch survives a power cut, also one that
	// another process has added, and without it may get lost. A branch may stay after its page was removed.
	AddBranch(ctx context.Context, branch Branch, durable bool) error

	// Branches lists the branches, those with Longer included, at all prefixes that begin with the
	// given bytes, in no order: with one byte those of a 256th of all prefixes, with all bytes of a
	// prefix, as look-ups do, those at this prefix.
	Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]Branch, error)

	// RemoveBranch removes a branch. RemoveBranch is idempotent.
	RemoveBranch(ctx context.Context, branch Branch) error

	// Account durably replaces the content of the tier's ledger by the result of change, and
	// returns the new content. The content is empty without a readable ledger. No other
	// process changes the ledger meanwhile. With a nil change the ledger is only read.
	//
	// change gets the content and the id under which this process has claims. The tier chooses
	// the id, which no other process has. Account returns an error of change unchanged, and the
	// ledger is unchanged then; after any other error the ledger may have changed.
	//
	// Account calls change at least once. Account may call change again with newer content
	// when the previous result was certainly not written (an object store's If-Match failed);
	// the last result is written. After an error change may run after Account has returned.
	Account(ctx context.Context, change func(content []byte, id string) ([]byte, error)) ([]byte, error)

	// Close releases the tier's resources. Other methods return ErrClosed afterwards. The store
	// closes its tiers, and does so as well when it could not be opened.
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

	// Seal makes the content durable, and nothing visible: it checks the length and syncs. Seal takes
	// as long as the device; other uploads, lists and removals do not wait for it. After a failed Seal
	// the written data is discarded, never synced again. After Seal only Commit or Abort may follow.
	Seal(ctx context.Context) error

	// Commit makes the file visible, as by a rename, and sets the file's recency to used. Commit first
	// seals an upload that is not sealed, and after Seal is quick: it syncs nothing. The name of a
	// Disk's file is durable after Persist. A non-zero Info together with an error means that the file
	// is visible and whole. A directory, link or other entry in the name's place goes to quarantine.
	Commit(ctx context.Context, used time.Time) (Committed, error)

	// Abort discards the written data. After Commit, Abort does nothing.
	Abort()
}

// ManyFinder is a Tier whose Find takes no longer for many names than for a few: that of an engine, which is asked
// for all of them at the same time.
type ManyFinder interface {
	FindAtOnce() int // the names of one call, at most
}

// FindAtOnce is the number of names to look up in one call.
func FindAtOnce(t Tier) int {
	if many, ok := t.(ManyFinder); ok {
		return many.FindAtOnce()
	}
	return 16
}

// Noter is a Tier that writes many uses of files at once, some minutes later: that of an engine which keeps no times
// of access, where each Touch is a request. Uses are lost with the process.
type Noter interface {
	// Note moves a file's recency forward, to used, unless it is later already. Other processes learn of it when
	// the uses are written. Note does no I/O. The file need not exist. Note reports false if nothing was noted.
	Note(name pagefile.Name, used time.Time) bool
}

// Note is that of a [Noter], and false for any other tier.
func Note(t Tier, name pagefile.Name, used time.Time) bool {
	n, ok := t.(Noter)
	return ok && n.Note(name, used)
}

// Accompanied is a Tier that keeps something beside pages, which goes with them. Info.Physical of ListShard
// includes it, that of Find does not.
type Accompanied interface {
	Beside(ctx context.Context, page pagefile.Name) int64 // physical bytes
}

// Collected is a Tier of which one machine at a time removes files, and which tells its own time.
type Collected interface {
	Lock(ctx context.Context) (release func(), err error) // as that of [Disk], or ErrUncollected
	Now(ctx context.Context) (time.Time, error)           // as that of [Disk]
}

// Finder is the part of a Tier that looks files up.
type Finder interface {
	Find(ctx context.Context, names []pagefile.Name, leading bool) ([]Info, error)
}

// Stat describes one file. Stat returns ErrNotFound without one.
func Stat(ctx context.Context, t Finder, name pagefile.Name) (Info, error) {
	infos, err := t.Find(ctx, []pagefile.Name{name}, false)
	if err == nil && !infos[0].Found() {
		err = ErrNotFound
	}
	if err != nil {
		return Info{}, err
	}
	return infos[0], nil
}

// Leading describes names in their order, up to the first missing file. With an error, Leading
// returns the files found before the error.
func Leading(ctx context.Context, t Finder, names []pagefile.Name) ([]Info, error) {
	infos, err := t.Find(ctx, names, true)
	n := 0
	for n < len(infos) && infos[n].Found() {
		n++
	}
	return infos[:n], err
}

// OpenPage opens a page and checks that its header is that of its name. The errors are those of ReadHeader.
func OpenPage(ctx context.Context, t Tier, name pagefile.Name) (Blob, *pagefile.Header, error) {
	blob, err := t.Open(ctx, name, false)
	if err != nil {
		return nil, nil, err
	}
	h, err := pagefile.ReadHeader(ctx, blob)
	if err == nil {
		err = h.CheckName(name)
	}
	if err != nil {
		blob.Close()
		return nil, nil, err
	}
	return blob, h, nil
}

// ReadHeader opens a page, reads its header and checks the page's name. ReadHeader returns
// ErrNotFound, pagefile.ErrDamaged, pagefile.ErrMismatch, or an error of the tier.
func ReadHeader(ctx context.Context, t Tier, name pagefile.Name) (*pagefile.Header, error) {
	blob, h, err := OpenPage(ctx, t, name)
	if err != nil {
		return nil, err
	}
	blob.Close()
	return h, nil
}

// Store makes an upload a durable file of the given name: Seal, Commit and Persist. A non-zero
// Info together with an error means that the file is visible and whole but perhaps not durable.
func Store(ctx context.Context, t Disk, up Upload, name pagefile.Name, used time.Time) (Committed, error) {
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
	Replaced bool  // another was first: a file of that name existed, and this one has its place
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

// SameDamage reports whether two reads, of which the second opened the file anew, are no proof against each other:
// they found the same damage. Where they differ, memory or a network makes it.
func SameDamage(first, second error) bool {
	return !errors.Is(first, pagefile.ErrDamaged) || !Doubtful(second) || first.Error() == second.Error()
}

// ErrStale reports an open file that its server no longer knows: another machine has removed
// or replaced the file. Opening the name again shows which.
var ErrStale = errors.New("diskstore: file was removed or replaced by another machine")

// NoAnswer reports whether err is the error of a tier that did not answer in time.
func NoAnswer(err error) bool {
	return errors.Is(err, vfs.ErrHung) || errors.Is(err, ErrTierTimeout)
}

// ClockSlack bounds the difference between two right clocks: a time later than that by more is in the future.
const ClockSlack = time.Minute

// Beyond reports whether a time is later than any right clock can show at now.
func Beyond(t, now time.Time) bool { return t.After(now.Add(ClockSlack)) }

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// WallBetween is the time between two moments, including time for which this machine slept:
// the monotonic clock does not count sleep, and other machines' clocks do.
func WallBetween(a, b time.Time) time.Duration { return b.Round(0).Sub(a.Round(0)).Abs() }
