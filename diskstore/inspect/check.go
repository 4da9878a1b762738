package inspect

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"golang.org/x/sync/errgroup"
)

// Problem is a kind of defect of a file or directory below a root.
type Problem string

// Problems of pages. No store serves these files, and their content is lost.
const (
	ProblemDamaged    Problem = "damaged"      // bytes other than the bytes that were written
	ProblemMisplaced  Problem = "misplaced"    // a good page in the place of another, or in a directory that no look-up reads
	ProblemUnreadable Problem = "unreadable"   // the device does not return the content
	ProblemNotRegular Problem = "not a file"   // a directory, link or FIFO in a file's place
	ProblemManifest   Problem = "bad manifest" // a manifest that cannot be used
)

// Problems that cost space or privacy, but no page.
const (
	ProblemNoManifest Problem = "no manifest" // pages without a description of their model
	ProblemStale      Problem = "stale"       // a temporary file of a dead process
	ProblemMode       Problem = "mode"        // users other than the owner may read or write the file
	ProblemOwner      Problem = "owner"       // the file belongs to another user
	ProblemForeign    Problem = "foreign"     // no store made the file
)

// ProblemUnchecked is not a defect: the file or directory could not be checked, or needs a newer program.
const ProblemUnchecked Problem = "unchecked"

// Damage reports whether p means that a page or a manifest is lost.
func (p Problem) Damage() bool {
	switch p {
	case ProblemDamaged, ProblemMisplaced, ProblemUnreadable, ProblemNotRegular, ProblemManifest:
		return true
	}
	return false
}

// Finding is one problem that a check found.
type Finding struct {
	Tier    string  `json:"tier"` // Local or Remote
	Path    string  `json:"path"`
	Problem Problem `json:"problem"`
	Damage  bool    `json:"damage"`
	Why     string  `json:"why"`   // the reason, in words
	Bytes   int64   `json:"bytes"` // physical; 0 for a directory
	Done    string  `json:"done"`  // the result of the repair, in words; "" without a repair
}

// CheckOptions are the options of a check. The zero value reads every page and changes nothing.
type CheckOptions struct {
	// Sample is the share of pages, between 0 and 1, of which every byte is read; each check selects
	// other pages. 0 means all pages. Of the other pages only the directory's entry is checked.
	Sample float64

	// Repair moves damaged files to quarantine, removes files of dead processes, copies a missing manifest
	// from the other tier, and removes the rights of other users. Repair never changes a good page.
	Repair bool

	// Found is called for each finding, one call at a time; may be nil.
	Found func(Finding)

	// Progress is called with the bytes read so far and the bytes to read in this tier, one
	// call at a time; a nil Progress saves the listing that counts the bytes to read.
	Progress func(tier string, done, total int64)
}

// TierCheck is the result of a check of one tier.
type TierCheck struct {
	Tier      string `json:"tier"`
	Root      string `json:"root"`
	Pages     int    `json:"pages"` // files in the place of a page
	Tails     int    `json:"tails"` // files in the place of a tail
	Read      int    `json:"read"`  // pages and tails that were read from beginning to end
	ReadBytes int64  `json:"read_bytes"`

	Processes   int   `json:"processes"`         // living processes that write below the root
	TempFiles   int   `json:"temp_files"`        // temporary files, stale ones included
	Quarantined int   `json:"quarantined_files"` // files in quarantine, before any repair
	AsideBytes  int64 `json:"-"`                 // physical bytes of temporary files and of quarantine

	Problems map[Problem]int `json:"problems"`
	Repaired int             `json:"repaired"` // findings that were repaired
	Damage   int             `json:"damage"`   // findings of damage that were not repaired

	Err   error  `json:"-"`               // the reason why the tier could not be checked, or nil
	Error string `json:"error,omitempty"` // that of Err
}

type checker struct {
	t     *dir.Tier
	other *dir.Tier // the other tier, for its manifests; may be nil
	tier  string
	opt   CheckOptions

	seed    maphash.Seed // of the sample
	readers chan *pagefile.Checker
	workers *errgroup.Group

	mu  sync.Mutex // guards the fields of rep that workers change: findings, Read, ReadBytes
	rep TierCheck

	// Used by the walk alone, and after it.
	total        int64 // bytes to read
	temps        map[string]dir.Entry
	havePages    map[pagefile.Key]bool // fingerprints with a page or tail
	haveManifest map[pagefile.Key]bool
}

// Check checks every file below the roots, and reads pages from beginning to end, decompressing compressed
// sections. Servers may use the roots meanwhile. Check returns one result for each tier, and ctx's error.
func (r *Roots) Check(ctx context.Context, opt CheckOptions) ([]TierCheck, error) {
	if math.IsNaN(opt.Sample) || opt.Sample < 0 || opt.Sample > 1 {
		return nil, fmt.Errorf("check: sample is %v, want 0 to 1: %w", opt.Sample, ErrArguments)
	}
	roots := r.tiers()
	var checks []TierCheck
	for i, root := range roots {
		var other *dir.Tier
		if len(roots) > 1 {
			other = roots[1-i].t
		}
		check, err := checkTier(ctx, root.t, other, root.id, opt)
		checks = append(checks, check)
		if err != nil {
			return checks, err
		}
	}
	if r.Engine != nil {
		check, err := checkEngine(ctx, r.Engine, r.Where, opt)
		return append(checks, check), err
	}
	return checks, nil
}

// checkTier checks one tier. The returned error is ctx's; any other error is in the result.
func checkTier(ctx context.Context, t, other *dir.Tier, tier string, opt CheckOptions) (TierCheck, error) {
	c := &checker{
		t: t, other: other, tier: tier, opt: opt, seed: maphash.MakeSeed(),
		rep:   TierCheck{Tier: tier, Root: t.Root, Problems: make(map[Problem]int)},
		temps: make(map[string]dir.Entry), havePages: make(map[pagefile.Key]bool), haveManifest: make(map[pagefile.Key]bool),
	}
	return c.end(ctx, c.run(ctx))
}

// end returns the result and ctx's error.
func (c *checker) end(ctx context.Context, err error) (TierCheck, error) {
	if ctx.Err() != nil {
		return c.rep, ctx.Err()
	}
	if c.rep.Err = err; err != nil {
		c.rep.Error = err.Error()
	}
	return c.rep, nil
}

func (c *checker) run(ctx context.Context) error {
	if c.opt.Progress != nil {
		if err := c.measure(ctx); err != nil {
			return err
		}
	}
	n := min(runtime.GOMAXPROCS(0), maxCheckers)
	c.readers = make(chan *pagefile.Checker, n)
	for range n {
		s, err := pagefile.NewChecker(c.progress)
		if err != nil {
			return err
		}
		defer s.Close()
		c.readers <- s
	}
	var workCtx context.Context
	c.workers, workCtx = errgroup.WithContext(ctx)
	c.workers.SetLimit(n)
	err := c.t.Walk(workCtx, func(e dir.Entry) error { return c.visit(workCtx, e) })
	if werr := c.workers.Wait(); werr != nil {
		err = werr
	}
	if err == nil {
		err = c.checkForManifests(ctx)
	}
	if err == nil {
		err = c.checkTemps(ctx)
	}
	return err
}

// maxCheckers is the number of files read at once: enough to keep a disk busy while other
// files are decompressed, few enough to leave most of the disk to running servers.
const maxCheckers = 4

func (c *checker) measure(ctx context.Context) error {
	return c.t.Walk(ctx, func(e dir.Entry) error {
		if e.Kind == dir.EntryPage && c.sampled(e.Name.Key) {
			c.total += e.Info.Size()
		}
		return nil
	})
}

func (c *checker) sampled(key pagefile.Key) bool {
	const bits = 53 // a float64 holds as many exactly
	return c.opt.Sample == 0 || float64(maphash.Bytes(c.seed, key[:])>>(64-bits))/(1<<bits) < c.opt.Sample
}

func (c *checker) progress(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rep.ReadBytes += n
	if c.opt.Progress != nil {
		c.opt.Progress(c.tier, c.rep.ReadBytes, max(c.rep.ReadBytes, c.total))
	}
}

// found counts, repairs and reports a finding. Only a check with Repair calls repair, which
// may be nil and returns its result in words, "" for no repair.
func (c *checker) found(e dir.Entry, problem Problem, why string, repair func() (string, error)) {
	f := Finding{Tier: c.tier, Path: e.Path, Problem: problem, Damage: problem.Damage(), Why: why}
	if e.Info != nil && e.Info.Mode().IsRegular() {
		f.Bytes = c.t.FS.PhysicalBytes(e.Info)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opt.Repair && repair != nil {
		var err error
		if f.Done, err = repair(); err != nil {
			f.Why += "; not repaired: " + err.Error()
		}
	}
	c.rep.Problems[problem]++
	switch {
	case f.Done != "":
		c.rep.Repaired++
	case f.Damage:
		c.rep.Damage++
	}
	if c.opt.Found != nil {
		c.opt.Found(f)
	}
}

// visit checks one entry; workers read the pages.
func (c *checker) visit(ctx context.Context, e dir.Entry) error {
	if e.Kind == dir.EntryUnlisted {
		c.found(e, ProblemUnchecked, e.Err.Error(), nil)
		return nil
	}
	c.checkRights(e)
	switch e.Kind {
	case dir.EntryPage:
		c.havePages[e.Name.Fingerprint] = true
		if e.Name.Class == pagefile.ClassTail {
			c.rep.Tails++
		} else {
			c.rep.Pages++
		}
		if c.sampled(e.Name.Key) {
			c.workers.Go(func() error { return c.checkPage(ctx, e) })
		}
	case dir.EntryManifest:
		c.haveManifest[e.Name.Fingerprint] = true
		return c.checkManifest(ctx, e)
	case dir.EntryTemp:
		c.temps[e.Path] = e
	case dir.EntryQuarantined:
		c.rep.Quarantined++
		c.rep.AsideBytes += c.t.FS.PhysicalBytes(e.Info)
	case dir.EntryLost:
		c.found(e, ProblemMisplaced, "a page file in a directory where nothing looks for it", c.aside(ctx, e, "misplaced"))
	case dir.EntryNotRegular:
		c.found(e, ProblemNotRegular, fmt.Sprintf("a %s where a file belongs", typeName(e.Info.Mode())), c.aside(ctx, e, "notregular"))
	case dir.EntryForeign:
		c.found(e, ProblemForeign, "no file of a page store has such a name", nil)
	}
	return nil
}

// typeName names the type of a file that is not regular.
func typeName(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&os.ModeSymlink != 0:
		return "symbolic link"
	case mode&os.ModeNamedPipe != 0:
		return "FIFO"
	case mode&os.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// checkRights finds files that other users may read or write. The rights of a link have no
// effect and are not checked.
func (c *checker) checkRights(e dir.Entry) {
	uid, ok := c.t.FS.Owner(e.Info)
	if !ok || e.Info.Mode()&os.ModeSymlink != 0 {
		return
	}
	if uid != os.Geteuid() {
		c.found(e, ProblemOwner, fmt.Sprintf("it belongs to user %d, this is user %d", uid, os.Geteuid()), nil)
		return
	}
	if perm := e.Info.Mode().Perm(); perm&0o077 != 0 {
		c.found(e, ProblemMode, fmt.Sprintf("mode is %04o", perm), func() (string, error) { return c.fixMode(e) })
	}
}

func (c *checker) checkPage(ctx context.Context, e dir.Entry) error {
	s := <-c.readers
	defer func() { c.readers <- s }()
	err := c.readFile(ctx, s, e.Path, e.Name)
	if tier.Doubtful(err) { // perhaps only this machine's cached copy is bad
		_ = c.t.FS.Uncache(e.Path)
		err = c.readFile(ctx, s, e.Path, e.Name)
	}
	if errors.Is(err, tier.ErrNotFound) || ctx.Err() != nil {
		return ctx.Err() // evicted since the listing, or the check was cancelled
	}
	if tier.NoAnswer(err) {
		return err
	}
	problem, reason := problemOf(err)
	switch problem {
	case "":
	case ProblemUnchecked:
		c.found(e, problem, err.Error(), nil)
		return nil
	case ProblemUnreadable:
		// A bad sector stays bad; a remote mount may recover.
		if c.tier == tier.Remote {
			c.found(e, problem, err.Error(), nil)
			break
		}
		fallthrough
	default:
		c.found(e, problem, err.Error(), c.aside(ctx, e, reason))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rep.Read++
	return nil
}

// readFile reads and checks the file at path, the page of that name.
func (c *checker) readFile(ctx context.Context, s *pagefile.Checker, path string, name pagefile.Name) error {
	blob, err := dir.OpenFile(c.t.FS, path, name)
	if err != nil {
		return err
	}
	return checkBlob(ctx, s, blob, name)
}

// checkBlob checks the page of that name, and closes it.
func checkBlob(ctx context.Context, s *pagefile.Checker, blob tier.Blob, name pagefile.Name) error {
	defer blob.Close()
	h, err := s.Check(ctx, blob)
	if err != nil {
		return err
	}
	return h.CheckName(name)
}

// problemOf returns the problem that an error of reading a page shows, and the word for that
// problem in the name of a quarantined file.
func problemOf(err error) (problem Problem, reason string) {
	var wrong *pagefile.Misplaced
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &wrong):
		return ProblemMisplaced, "misplaced"
	case errors.Is(err, pagefile.ErrDamaged):
		return ProblemDamaged, "damaged"
	case errors.Is(err, syscall.EIO):
		return ProblemUnreadable, "unreadable"
	}
	return ProblemUnchecked, ""
}

// checkManifest reads a manifest. The next server that loads the model replaces an unusable
// manifest, so that losing a manifest costs little.
func (c *checker) checkManifest(ctx context.Context, e dir.Entry) error {
	_, err := tier.ReadManifest(ctx, c.t, e.Name.Fingerprint)
	switch {
	case err == nil || errors.Is(err, tier.ErrNotFound):
	case ctx.Err() != nil:
		return ctx.Err()
	case tier.NoAnswer(err):
		return err
	case errors.Is(err, pagefile.ErrDamaged):
		c.found(e, ProblemManifest, err.Error(), func() (string, error) { return c.replaceManifest(ctx, e) })
	default:
		c.found(e, ProblemUnchecked, err.Error(), nil)
	}
	return nil
}

// checkForManifests finds fingerprints that have pages and no manifest.
func (c *checker) checkForManifests(ctx context.Context) error {
	for fp := range c.havePages {
		if c.haveManifest[fp] {
			continue
		}
		name := pagefile.Name{Fingerprint: fp, Class: pagefile.ClassManifest}
		// A manifest whose file could not be checked was not visited either.
		if _, err := tier.Stat(ctx, c.t, name); tier.NoAnswer(err) {
			return err
		} else if errors.Is(err, tier.ErrNotFound) {
			c.found(dir.Entry{Path: c.t.Path(name), Name: name}, ProblemNoManifest,
				"nothing says which model these pages are of; a server that loads it will",
				func() (string, error) { return c.copyManifest(ctx, fp) })
		}
	}
	return ctx.Err()
}
