package vfs

import (
	"cmp"
	"io/fs"
	"regexp"
	"slices"
	"sync"
)

// Rule makes the operations it matches fail or wait. Conditions that are zero match everything.
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
	wrapped

	mu     sync.Mutex
	rules  []*Rule
	counts map[Op]int
	watch  func(op Op, paths ...string)
}

// Inject wraps fs. Without rules it only counts.
func Inject(fs FS) *Injector {
	i := &Injector{counts: make(map[Op]int)}
	i.wrapped = wrapped{fs: fs, around: i.carryOut, file: func(f wrappedFile) File { return &injectedFile{f, i} }}
	return i
}

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

// Reset removes all rules and zeroes the counts. Operations at a gate wait until the gate opens.
func (i *Injector) Reset() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rules = nil
	clear(i.counts)
}

// Count returns the number of operations of the given kinds that began since the last Reset;
// of all kinds when none is given.
func (i *Injector) Count(ops ...Op) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for op, count := range i.counts {
		if len(ops) == 0 || slices.Contains(ops, op) {
			n += count
		}
	}
	return n
}

// before counts the operation, waits at the gate of the rule that matches, and returns the
// rule; nil when the operation is to be carried out.
func (i *Injector) before(op Op, paths ...string) *Rule {
	i.mu.Lock()
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

// carryOut carries an operation out unless a rule says otherwise.
func (i *Injector) carryOut(op Op, run func() (any, error), paths ...string) (any, error) {
	if r := i.before(op, paths...); r != nil {
		return nil, &fs.PathError{Op: string(op), Path: paths[0], Err: r.Err}
	}
	return run()
}

// injectedFile applies the injector's rules to an open file.
type injectedFile struct {
	wrappedFile
	i *Injector
}

func (f *injectedFile) ReadAt(p []byte, off int64) (int, error) {
	return f.move(OpRead, p, func(p []byte) (int, error) { return f.File.ReadAt(p, off) })
}

func (f *injectedFile) Write(p []byte) (int, error) { return f.move(OpWrite, p, f.File.Write) }

// move reads or writes p, or a part of p and then fails.
func (f *injectedFile) move(op Op, p []byte, move func(p []byte) (int, error)) (int, error) {
	r := f.i.before(op, f.name)
	if r == nil {
		return move(p)
	}
	n := 0
	if short := min(r.Short, len(p)); short > 0 {
		n, _ = move(p[:short])
	}
	return n, &fs.PathError{Op: string(op), Path: f.name, Err: r.Err}
}

// Close releases the descriptor even if it fails, as close(2) does.
func (f *injectedFile) Close() error {
	injected := f.i.do(OpClose, func() error { return nil }, f.name)
	err := f.File.Close()
	return cmp.Or(injected, err)
}
