package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// RootOptions configures OpenRoot. Local.Root is required.
type RootOptions struct {
	Local, Remote TierConfig

	// RemoteTier, Obsolete and Eviction are as in Options.
	RemoteTier tier.Tier
	Obsolete   func(FingerprintUsage) bool
	Eviction   Eviction

	// Timeout bounds one operation of a filesystem, such as reading a file's attributes or 1
	// MiB of its content. A root that takes longer gets no further operation: calls that need
	// that root fail with an error that names the root, and NoAnswer reports such an error.
	// The other root is used as far as it is useful alone. 0 means no limit.
	Timeout time.Duration

	// FS is the filesystem; nil means the operating system's.
	FS vfs.FS

	// Logger receives state changes; nil discards them.
	Logger *slog.Logger
}

// Root is a store for tools: all fingerprints below its roots, without one of its own. Servers
// may use the roots meanwhile, and compute removed pages again.
type Root struct {
	s         *Store
	remoteErr error      // the reason why the remote tier was unusable when opened, or nil
	gc        sync.Mutex // one GC at a time
}

// noLimit is longer than a person waits.
const noLimit = 365 * 24 * time.Hour

// OpenRoot opens the roots of a store without a fingerprint. OpenRoot makes no file, and removes only
// temporary files of dead processes; GC and DropQuarantined remove pages. The errors are the errors of Open
// and tier.ErrRootMissing; a remote tier that cannot be reached is not an error.
func OpenRoot(ctx context.Context, opt RootOptions) (*Root, error) {
	limit := noLimit
	if opt.Timeout > 0 && opt.Timeout < noLimit/2 {
		limit = 2 * opt.Timeout // the filesystem's limit is shorter, and its error describes the operation
	}
	s, err := newStore(Options{
		Local: opt.Local, Remote: opt.Remote, RemoteTier: opt.RemoteTier, FS: opt.FS, Logger: opt.Logger, Timeout: opt.Timeout,
		Obsolete: opt.Obsolete, Eviction: opt.Eviction, RemoteTimeout: limit, ReadTimeout: limit,
	}, false)
	if err != nil {
		closeUnused(opt.RemoteTier)
		return nil, err
	}
	if err := s.disk.Ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open root %s: %w", s.opt.Local.Root, err), s.Close())
	}
	r := &Root{s: s}
	if s.remote == nil {
		return r, nil
	}
	s.guard.Breaker.Silence() // no operation is retried, and errors are returned
	if _, err := s.guard.Find(ctx, []pagefile.Name{{Class: pagefile.ClassManifest}}, false); tier.UnsafeRoot(err) {
		return nil, errors.Join(fmt.Errorf("open remote root %s: %w", s.opt.Remote.Root, err), s.Close())
	} else if err != nil {
		r.remoteErr = err
	}
	return r, nil
}

// remoteError returns err, or the reason why the tier was down from the beginning.
func (r *Root) remoteError(doing string, err error) error {
	if errors.Is(err, tier.ErrTierDown) && r.remoteErr != nil {
		err = r.remoteErr
	}
	root := r.s.opt.Remote.Root
	if strings.Contains(err.Error(), root) {
		root = "the remote tier"
	}
	return fmt.Errorf("%s %s: %w", doing, root, err)
}

// Dirs returns the directories of the tiers, for package inspect. Remote is nil without a
// remote tier, and for a RemoteTier that is not a directory. Close closes both.
func (r *Root) Dirs() (local, remote *dir.Tier) {
	if r.s.remote != nil {
		remote = r.s.remote.root
	}
	return r.s.disk, remote
}

// RemoteTier returns the remote tier that is no directory, for package inspect, and what names it; nil without one.
// Close closes it.
func (r *Root) RemoteTier() (t tier.Tier, where string) {
	if r.s.remote == nil || r.s.remote.root != nil {
		return nil, ""
	}
	return r.s.guard, r.s.remote.where
}

// Close ends running operations and closes the tiers. A root that does not answer is not an
// error: the next process removes the files left there.
func (r *Root) Close() error {
	if err := r.s.Close(); !tier.NoAnswer(err) {
		return err
	}
	return nil
}

// RootUsage is the result of Root.Usage.
type RootUsage struct {
	Local  RootTierUsage
	Remote RootTierUsage // zero without a remote tier, and with RemoteErr

	// RemoteErr is the reason for an empty Remote: nil when the tier was counted, or without a remote tier.
	RemoteErr error
}

// RootTierUsage describes all files below one root.
type RootTierUsage struct {
	TierConfig
	Fingerprints []FingerprintUsage // in order of key

	Pages, Tails int
	Bytes        int64 // physical, of pages and tails

	TempFiles, QuarantineFiles int
	TempBytes, QuarantineBytes int64 // physical

	Processes int // living processes that use the root

	// Hits are the hits of all fingerprints, including some without pages.
	Hits ledger.Hits

	// Booked is the recorded figure that the budget limits, in physical bytes: at least all
	// files above, and in addition the bytes that processes have reserved and not written; 0
	// before the first count. Counted is the end of the last count.
	Booked  int64
	Counted time.Time

	Space   vfs.Space           // of the filesystem
	Written []ledger.DayWritten // by UTC day, oldest first, the last 30 days at most
}

// Usage counts the files of both roots by listing them. Usage returns an error when the local
// root cannot be listed.
func (r *Root) Usage(ctx context.Context) (RootUsage, error) {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return RootUsage{}, err
	}
	defer leave()
	var u RootUsage
	if u.Local, err = r.s.local.rootUsage(ctx); err != nil {
		return RootUsage{}, fmt.Errorf("count %s: %w", r.s.opt.Local.Root, err)
	}
	if r.s.remote != nil {
		if u.Remote, err = r.s.remote.rootUsage(ctx); err != nil {
			u.Remote, u.RemoteErr = RootTierUsage{}, r.remoteError("count", err)
		}
	}
	return u, nil
}

// GCOptions select the files that GC removes.
type GCOptions struct {
	// Fingerprints selects fingerprints by their files in one tier. Nil selects all.
	Fingerprints func(FingerprintUsage) bool

	// OlderThan selects files by the time since their last use, the smaller of the values by this machine's
	// clock and by the filesystem's; with DryRun, by this machine's alone. 0 selects any.
	OlderThan time.Duration

	// DryRun reports the files that GC would remove, and removes none of them. Opening a root
	// removes temporary files of dead processes in any case.
	DryRun bool

	// Removed is called for each removed file, from one goroutine. May be nil.
	Removed func(GCFile)

	// Progress is called during listings with the number of files listed in a tier so far. May
	// be nil. Neither function is called after GC has returned.
	Progress func(tier string, files int)
}

// budgetOnly reports whether the options select nothing, so that only budgets apply.
func (o GCOptions) budgetOnly() bool { return o.Fingerprints == nil && o.OlderThan == 0 }

// GCFile is one file that GC removes from a tier.
type GCFile struct {
	tier.Info
	Tier    string // Local or Remote
	Demoted bool   // the file moved to the remote tier
}

// GCTier is the number of files and bytes that GC removed from one tier.
type GCTier struct {
	Pages        int   `json:"pages"`
	Tails        int   `json:"tails"`
	Demoted      int   `json:"demoted"`      // of these, moved to the remote tier
	Bytes        int64 `json:"bytes"`        // physical
	Fingerprints int   `json:"fingerprints"` // of which no file is left
}

func (r *GCTier) add(info tier.Info, demoted bool) {
	if info.Class == pagefile.ClassTail {
		r.Tails++
	} else {
		r.Pages++
	}
	if demoted {
		r.Demoted++
	}
	r.Bytes += info.Physical
}

// progressFiles is the number of files listed between two calls of GCOptions.Progress.
const progressFiles = 4096

// GCReport is the result of GC.
type GCReport struct {
	Local, Remote GCTier

	// RemoteErr is the reason why the remote tier was not collected; nil when it was
	// collected, or without a remote tier.
	RemoteErr error
}

// GC removes pages. Without a selection of fingerprints or age, GC brings both tiers within
// their budgets, as the store does by itself: pages evicted from the local tier move to the
// remote one, in the order of the package comment; while the remote tier cannot be used, the
// local tier stays unchanged. With a selection, GC deletes every selected file from both tiers, independent of budgets.
//
// GC returns its report together with the first error of the local tier.
func (r *Root) GC(ctx context.Context, opt GCOptions) (GCReport, error) {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return GCReport{}, err
	}
	defer leave()
	r.gc.Lock()
	defer r.gc.Unlock()
	var report GCReport
	r.s.local.report(opt, &report.Local)
	if r.s.remote != nil {
		r.s.remote.report(opt, &report.Remote)
	}
	collectRemote := func() {
		var err error
		if r.s.remote == nil {
			return
		}
		if report.Remote.Fingerprints, err = r.s.remote.gcTier(ctx, opt); err != nil {
			report.RemoteErr = r.remoteError("collect", err)
		}
	}
	if opt.budgetOnly() { // first, to make room for pages that move down
		if collectRemote(); report.RemoteErr != nil {
			return report, nil // pages that should move down would be deleted
		}
	}
	report.Local.Fingerprints, err = r.s.local.gcTier(ctx, opt)
	if !opt.budgetOnly() { // last: a page on its way down has left one tier or is found in the other
		collectRemote()
	}
	if err != nil {
		return report, fmt.Errorf("collect %s: %w", r.s.opt.Local.Root, err)
	}
	return report, nil
}

// report makes the level tell of files that are listed and that leave.
func (lv *level) report(opt GCOptions, to *GCTier) {
	files := 0
	lv.files.Listed = func() {
		if files++; opt.Progress != nil && files%progressFiles == 0 {
			opt.Progress(lv.name, files)
		}
	}
	lv.room.Left = func(info tier.Info, demoted bool) {
		to.add(info, demoted)
		if opt.Removed != nil {
			opt.Removed(GCFile{Info: info, Tier: lv.name, Demoted: demoted})
		}
	}
}

func (lv *level) rootUsage(ctx context.Context) (RootTierUsage, error) {
	u := RootTierUsage{TierConfig: lv.config}
	u.Root = lv.where
	var err error
	if u.Space, err = lv.tier.Space(ctx); err != nil {
		return u, err
	}
	found, err := lv.files.Look(ctx)
	if err != nil {
		return u, err
	}
	u.Fingerprints = lv.identify(ctx, found)
	for _, use := range u.Fingerprints {
		u.Pages += use.Pages
		u.Tails += use.Tails
		u.Bytes += use.Bytes
	}
	u.TempFiles, u.TempBytes = found.Aside.TempFiles, found.Aside.TempBytes
	u.QuarantineFiles, u.QuarantineBytes = found.Aside.QuarantineFiles, found.Aside.QuarantineBytes
	u.Processes = len(found.Aside.Living)
	l, err := lv.book.Read(ctx)
	if err != nil {
		return u, err
	}
	for i := range u.Fingerprints {
		u.Fingerprints[i].Hits = l.Hits[u.Fingerprints[i].Fingerprint.String()]
	}
	u.Hits = l.AllHits()
	u.Written = l.Days()
	if l.Counts > 0 {
		u.Booked, u.Counted = l.Figure(), l.Counted
	}
	return u, nil
}

// gcTier removes files from one tier as opt says, and returns the number of fingerprints of
// which no file is left.
func (lv *level) gcTier(ctx context.Context, opt GCOptions) (fingerprints int, err error) {
	if err := lv.book.Refresh(ctx); err != nil {
		return 0, err
	}
	switch {
	case !opt.budgetOnly():
		return lv.gcPicked(ctx, opt)
	case opt.DryRun:
		return 0, lv.room.Rehearse(ctx)
	}
	return 0, lv.room.Collect(ctx, room.Demand{})
}

// gcPicked deletes the files that opt selects, independent of budgets.
func (lv *level) gcPicked(ctx context.Context, opt GCOptions) (fingerprints int, err error) {
	found, err := lv.files.Look(ctx)
	if err != nil {
		return 0, err
	}
	uses := lv.identify(ctx, found)
	p := purge{dry: opt.DryRun, reason: TombstoneRemoved, removed: func(info tier.Info) { lv.room.Left(info, false) }}
	if opt.OlderThan > 0 {
		now := lv.now()
		if !opt.DryRun { // a dry run makes no file to read the filesystem's clock
			if now, err = lv.ageClock(ctx); err != nil {
				return 0, err
			}
		}
		p.before = now.Add(-opt.OlderThan)
	}
	for _, use := range uses {
		if opt.Fingerprints != nil && !opt.Fingerprints(use) {
			continue
		}
		p.fingerprint = use.Fingerprint
		all, err := lv.purge(ctx, p)
		if err != nil {
			return fingerprints, err
		}
		if all {
			fingerprints++
		}
	}
	return fingerprints, nil
}

// QuarantineDrop is the number of files and bytes that DropQuarantined removed from one tier.
type QuarantineDrop struct {
	Tier  string
	Files int
	Bytes int64 // physical
}

// ErrNoDirectory reports a tier whose quarantine cannot be looked through.
var ErrNoDirectory = errors.New("diskstore: the tier is not a directory, and keeps quarantined files by its own rules")

// DropQuarantined removes the files in quarantine that are, or may be, pages of the fingerprints that picked
// accepts: a damaged page contains a prompt as well. A file whose header names no fingerprint may belong to
// any. With dryRun, DropQuarantined only counts. DropQuarantined returns the removed files by tier, and the
// errors of both tiers. A RemoteTier that is not a directory is left alone, with an error.
func (r *Root) DropQuarantined(ctx context.Context, picked func(fingerprint pagefile.Key) bool, dryRun bool) ([]QuarantineDrop, error) {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var drops []QuarantineDrop
	var errs []error
	for _, lv := range r.s.tiers {
		root, counts := lv.root, lv.book.State().Counts
		if root == nil {
			errs = append(errs, fmt.Errorf("remove files in quarantine in %s: %w", lv.where, ErrNoDirectory))
			continue
		}
		files, bytes, err := root.DropQuarantined(ctx, picked, dryRun)
		if !dryRun && err == nil {
			lv.book.Release(bytes, counts)
		}
		drops = append(drops, QuarantineDrop{Tier: lv.name, Files: files, Bytes: bytes})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove files in quarantine in %s: %w", root.Root, err))
		}
	}
	return drops, errors.Join(errs...)
}
