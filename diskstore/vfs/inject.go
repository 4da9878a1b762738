package vfs

import (
	"io"
	"io/fs"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Op names one kind of operation of an FS or a File.
type Op string

// The operations of an Injector. PhysicalBytes and Owner only look at a FileInfo and are not
// among them.
const (
	OpCreate  Op = "create"
	OpOpen    Op = "open"
	OpUncache Op = "uncache"
	OpMkdir   Op = "mkdir"
	OpReadDir Op = "readdir"
	OpRename  Op = "rename"
	OpRemove  Op = "remove"
	OpLstat   Op = "lstat"
	OpChtimes Op = "chtimes"
	OpLocking Op = "locking"
	OpSyncDir Op = "syncdir"
	OpLock    Op = "lock"
	OpSpace   Op = "space"
	OpIsRAM   Op = "isram"
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpSync    Op = "sync"
	OpClose   Op = "close"
	OpStat    Op = "stat"
)

// Rule makes the operations it matches fail or wait. Conditions that are zero
// match everything.
type Rule struct {
	Ops  []Op           // kinds of operations
	Path *regexp.Regexp // matches the path, or one of a rename's two paths
	Nth  int            // only the n-th operation that matches Ops and Path, from 1

	Gate *Gate // the operation first waits here
	Err  error // then fails with Err; nil carries the operation out

	// Short is the number of bytes that a failing read or write moves first, as with a bad
	// sector or a full disk.
	Short int

	seen int
}

// Gate holds operations back, as a hung mount does.
type Gate struct {
	entered chan struct{}
	open    chan struct{}
	once    sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{entered: make(chan struct{}, 4096), open: make(chan struct{})}
}

// Open lets all operations through, now and later.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

// Entered receives a value each time an operation arrives at the gate.
func (g *Gate) Entered() <-chan struct{} { return g.entered }

func (g *Gate) pass() {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.open
}

// Injector is an FS that carries out operations on another one unless a rule says otherwise.
// Injector may be used from several goroutines.
type Injector struct {
	fs FS

	mu     sync.Mutex
	rules  []*Rule
	counts map[Op]int
	total  int
	watch  func(op Op, paths ...string)
}

// Inject wraps fs. Without rules it only counts.
func Inject(fs FS) *Injector { return &Injector{fs: fs, counts: make(map[Op]int)} }

// Add appends a rule. Of several rules that match an operation the first acts.
func (i *Injector) Add(r Rule) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rules = append(i.rules, &r)
}

// Watch calls fn before each operation, on the operation's goroutine, with its path or a
// rename's two paths. In fn a test can copy a Mem between any two operations.
func (i *Injector) Watch(fn func(op Op, paths ...string)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watch = fn
}

// Reset removes all rules and zeroes the counts. Operations at a gate wait until the gate
// opens.
func (i *Injector) Reset() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rules, i.total = nil, 0
	clear(i.counts)
}

// Count returns the number of operations of the given kinds that began since the last Reset;
// of all kinds when none is given.
func (i *Injector) Count(ops ...Op) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(ops) == 0 {
		return i.total
	}
	n := 0
	for _, op := range ops {
		n += i.counts[op]
	}
	return n
}

// before counts the operation, waits at the gate of the rule that matches, and returns the
// rule; nil when the operation is to be carried out.
func (i *Injector) before(op Op, paths ...string) *Rule {
	i.mu.Lock()
	i.total++
	i.counts[op]++
	var hit *Rule
	for _, r := range i.rules {
		if !r.matches(op, paths) {
			continue
		}
		r.seen++
		if r.Nth == 0 || r.Nth == r.seen {
			hit = r
			break
		}
	}
	watch := i.watch
	i.mu.Unlock()
	if watch != nil {
		watch(op, paths...)
	}
	if hit == nil {
		return nil
	}
	if hit.Gate != nil {
		hit.Gate.pass()
	}
	if hit.Err == nil {
		return nil
	}
	return hit
}

func (r *Rule) matches(op Op, paths []string) bool {
	if len(r.Ops) > 0 && !slices.Contains(r.Ops, op) {
		return false
	}
	return r.Path == nil || slices.ContainsFunc(paths, r.Path.MatchString)
}

// fail does as before, for operations whose failure is only an error.
func (i *Injector) fail(op Op, paths ...string) error {
	if r := i.before(op, paths...); r != nil {
		return &fs.PathError{Op: string(op), Path: paths[0], Err: r.Err}
	}
	return nil
}

func (i *Injector) Create(name string) (File, error) {
	if err := i.fail(OpCreate, name); err != nil {
		return nil, err
	}
	f, err := i.fs.Create(name)
	return i.wrap(name, f, err)
}

func (i *Injector) Open(name string) (File, error) {
	if err := i.fail(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.Open(name)
	return i.wrap(name, f, err)
}

func (i *Injector) Uncache(name string) error {
	if err := i.fail(OpUncache, name); err != nil {
		return err
	}
	return i.fs.Uncache(name)
}

func (i *Injector) wrap(name string, f File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &injectedFile{File: f, i: i, name: name}, nil
}

func (i *Injector) Mkdir(name string) error {
	if err := i.fail(OpMkdir, name); err != nil {
		return err
	}
	return i.fs.Mkdir(name)
}

func (i *Injector) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := i.fail(OpReadDir, name); err != nil {
		return nil, err
	}
	return i.fs.ReadDir(name)
}

func (i *Injector) Rename(oldname, newname string) error {
	if err := i.fail(OpRename, oldname, newname); err != nil {
		return err
	}
	return i.fs.Rename(oldname, newname)
}

func (i *Injector) Remove(name string) error {
	if err := i.fail(OpRemove, name); err != nil {
		return err
	}
	return i.fs.Remove(name)
}

func (i *Injector) Lstat(name string) (fs.FileInfo, error) {
	if err := i.fail(OpLstat, name); err != nil {
		return nil, err
	}
	return i.fs.Lstat(name)
}

func (i *Injector) Chtimes(name string, atime, mtime time.Time) error {
	if err := i.fail(OpChtimes, name); err != nil {
		return err
	}
	return i.fs.Chtimes(name, atime, mtime)
}

func (i *Injector) Locking(name string) (Locking, error) {
	if err := i.fail(OpLocking, name); err != nil {
		return Locking{Reach: ReachHost}, err
	}
	return i.fs.Locking(name)
}

func (i *Injector) SyncDir(name string) error {
	if err := i.fail(OpSyncDir, name); err != nil {
		return err
	}
	return i.fs.SyncDir(name)
}

func (i *Injector) Lock(name string) (io.Closer, error) {
	if err := i.fail(OpLock, name); err != nil {
		return nil, err
	}
	return i.fs.Lock(name)
}

func (i *Injector) LockThere(name string) (io.Closer, error) {
	if err := i.fail(OpLock, name); err != nil {
		return nil, err
	}
	return i.fs.LockThere(name)
}

func (i *Injector) Space(name string) (Space, error) {
	if err := i.fail(OpSpace, name); err != nil {
		return Space{}, err
	}
	return i.fs.Space(name)
}

func (i *Injector) IsRAM(name string) (bool, error) {
	if err := i.fail(OpIsRAM, name); err != nil {
		return false, err
	}
	return i.fs.IsRAM(name)
}

func (i *Injector) PhysicalBytes(info fs.FileInfo) int64 { return i.fs.PhysicalBytes(info) }

func (i *Injector) Owner(info fs.FileInfo) (uid int, ok bool) { return i.fs.Owner(info) }

func (i *Injector) SameFile(a, b fs.FileInfo) bool { return i.fs.SameFile(a, b) }

// injectedFile applies the injector's rules to an open file.
type injectedFile struct {
	File
	i    *Injector
	name string
}

func (f *injectedFile) ReadAt(p []byte, off int64) (int, error) {
	r := f.i.before(OpRead, f.name)
	if r == nil {
		return f.File.ReadAt(p, off)
	}
	n := 0
	if short := min(r.Short, len(p)); short > 0 {
		n, _ = f.File.ReadAt(p[:short], off)
	}
	return n, &fs.PathError{Op: string(OpRead), Path: f.name, Err: r.Err}
}

func (f *injectedFile) Write(p []byte) (int, error) {
	r := f.i.before(OpWrite, f.name)
	if r == nil {
		return f.File.Write(p)
	}
	n := 0
	if short := min(r.Short, len(p)); short > 0 {
		n, _ = f.File.Write(p[:short])
	}
	return n, &fs.PathError{Op: string(OpWrite), Path: f.name, Err: r.Err}
}

func (f *injectedFile) Sync() error {
	if err := f.i.fail(OpSync, f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

// Close releases the descriptor even if it fails, as close(2) does.
func (f *injectedFile) Close() error {
	injected := f.i.fail(OpClose, f.name)
	err := f.File.Close()
	if injected != nil {
		return injected
	}
	return err
}

func (f *injectedFile) Stat() (fs.FileInfo, error) {
	if err := f.i.fail(OpStat, f.name); err != nil {
		return nil, err
	}
	return f.File.Stat()
}
