package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/vfs"
)

// RootOptions configures OpenRoot. Local.Root is required.
type RootOptions struct {
	Local, Remote TierConfig

	// Timeout is how long one operation of a filesystem may take, such as a look
	// at a file, or reading 1 MiB of it. A root that takes longer is not waited
	// for again: what needs it fails with an error that names it, which NoAnswer
	// reports, and the other root is used where it is of use alone. 0 means any
	// time.
	Timeout time.Duration

	// FS is the filesystem; nil means the operating system's.
	FS vfs.FS

	// Logger receives state changes; nil discards them.
	Logger *slog.Logger
}

// Root is what tools see of a store: all fingerprints below its roots, none of
// which is its own. Servers may use the roots meanwhile; a page that is removed
// under them is a page they compute again.
type Root struct {
	s         *Store
	remoteErr error      // why the remote tier could not be used when opened
	gc        sync.Mutex // one GC at a time
}

// OpenRoot opens the roots of a store without a fingerprint. It makes nothing,
// and before GC it changes nothing, but that temporary files of dead processes
// go. Errors are those of Open, and ErrRootMissing; a remote tier that cannot be
// reached is no error here.
func OpenRoot(ctx context.Context, opt RootOptions) (*Root, error) {
	s, err := newStore(Options{
		Local: opt.Local, Remote: opt.Remote, FS: opt.FS, Logger: opt.Logger, Timeout: opt.Timeout,
		// The filesystem gives up first, and says what it was doing.
		RemoteTimeout: 2 * opt.Timeout, ReadTimeout: 2 * opt.Timeout,
	}, false)
	if err != nil {
		return nil, err
	}
	if err := s.disk.Ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open root %s: %w", s.opt.Local.Root, err), s.Close())
	}
	r := &Root{s: s}
	if s.remote == nil {
		return r, nil
	}
	s.guard.Breaker.Silence() // nothing is tried again, and errors are returned
	if _, err := s.guard.Fingerprints(ctx); tier.UnsafeRoot(err) {
		return nil, errors.Join(fmt.Errorf("open remote root %s: %w", s.opt.Remote.Root, err), s.Close())
	} else if err != nil {
		r.remoteErr = err
	}
	return r, nil
}

// remoteError is err, or why the tier was down from the beginning.
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

// Dirs returns the directories of the tiers, for package inspect. Remote is nil when there is
// no remote tier. Close closes both.
func (r *Root) Dirs() (local, remote *dir.Tier) {
	if r.s.remote != nil {
		remote = r.s.remote.dir()
	}
	return r.s.disk, remote
}

// Close ends running operations and gives up what the root holds. A root that
// does not answer is no error here: what stays there is cleaned by the next
// process.
func (r *Root) Close() error {
	if err := r.s.Close(); !tier.NoAnswer(err) {
		return err
	}
	return nil
}

// RootUsage is what Root.Usage counted.
type RootUsage struct {
	Local  RootTierUsage
	Remote RootTierUsage // zero without a remote tier, and with RemoteErr

	// RemoteErr says why Remote is empty: nil when it was counted or there is
	// no remote tier.
	RemoteErr error
}

// RootTierUsage is everything below one root.
type RootTierUsage struct {
	TierConfig
	Fingerprints []FingerprintUsage // in order of key

	Pages, Tails int
	Bytes        int64 // physical, of pages and tails

	TempFiles, QuarantineFiles int
	TempBytes, QuarantineBytes int64 // physical

	Processes int // that use the root and have not ended

	// Hits are those of all fingerprints, also of some whose pages are gone.
	Hits ledger.Hits

	// Booked is the recorded figure that the budget limits: at least all of
	// the above, in physical bytes, and too high by what processes have
	// reserved and not written. It is 0 when nobody has counted yet; Counted is
	// when somebody last did.
	Booked  int64
	Counted time.Time

	Space   vfs.Space           // of the filesystem
	Written []ledger.DayWritten // by UTC day, oldest first, the last 30 days at most
}

// Usage counts what both roots hold, by listing them. It returns an error when
// the local one cannot be listed.
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

// GCOptions says what GC removes.
type GCOptions struct {
	// Fingerprints picks fingerprints by what they hold in one tier. Nil means
	// all.
	Fingerprints func(FingerprintUsage) bool

	// OlderThan picks files by how long ago they were last used. 0 means any. That
	// is by this machine's clock and by the filesystem's, whichever says less, and
	// with DryRun by this machine's.
	OlderThan time.Duration

	// DryRun reports what would go and touches nothing.
	DryRun bool

	// Removed is called for each file that goes, from one goroutine. May be nil.
	Removed func(GCFile)

	// Progress is called now and then while files are listed, with how many
	// have been seen in this tier. May be nil. Neither is called after GC has
	// returned.
	Progress func(tier string, files int)
}

// budgetOnly reports whether nothing in particular is picked.
func (o GCOptions) budgetOnly() bool { return o.Fingerprints == nil && o.OlderThan == 0 }

// GCFile is one file that GC removes from a tier.
type GCFile struct {
	tier.Info
	Tier    string // Local or Remote
	Demoted bool   // it moved to the remote tier
}

// GCTier counts what GC removed from one tier.
type GCTier struct {
	Pages, Tails int
	Demoted      int   // of these, moved to the remote tier
	Bytes        int64 // physical
	Fingerprints int   // of which everything went
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

// progressFiles is how many files are listed between two calls of
// GCOptions.Progress.
const progressFiles = 4096

// GCReport is the result of GC.
type GCReport struct {
	Local, Remote GCTier

	// RemoteErr says why the remote tier was not collected; nil when it was or
	// there is none.
	RemoteErr error
}

// GC removes pages. Without a choice of fingerprints or age it brings both tiers
// within their budgets, as the store does by itself: what leaves the local tier
// moves to the remote one, the least recently used first and always a page
// before those it continues; when the remote tier cannot be used, the local one
// stays as it is. With a choice it deletes everything chosen from both tiers,
// whatever the budgets.
//
// It returns what it did together with the first error of the local tier.
func (r *Root) GC(ctx context.Context, opt GCOptions) (GCReport, error) {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return GCReport{}, err
	}
	defer leave()
	r.gc.Lock()
	defer r.gc.Unlock()
	var report GCReport
	files := make(map[*level]int)
	r.s.watch = watcher{
		listed: func(lv *level) {
			if files[lv]++; opt.Progress != nil && files[lv]%progressFiles == 0 {
				opt.Progress(lv.name, files[lv])
			}
		},
		removed: func(lv *level, info tier.Info, demoted bool) {
			tr := &report.Local
			if lv == r.s.remote {
				tr = &report.Remote
			}
			tr.add(info, demoted)
			if opt.Removed != nil {
				opt.Removed(GCFile{Info: info, Tier: lv.name, Demoted: demoted})
			}
		},
	}
	// The remote tier first: it makes room for what leaves the local one.
	if r.s.remote != nil {
		if report.Remote.Fingerprints, err = r.s.remote.gcTier(ctx, opt); err != nil {
			report.RemoteErr = r.remoteError("collect", err)
		}
	}
	if opt.budgetOnly() && report.RemoteErr != nil {
		return report, nil // what should move down would be deleted
	}
	if report.Local.Fingerprints, err = r.s.local.gcTier(ctx, opt); err != nil {
		return report, fmt.Errorf("collect %s: %w", r.s.opt.Local.Root, err)
	}
	return report, nil
}
