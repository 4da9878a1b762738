package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// readMost bounds a read in all.
	readMost = 5 * time.Second
	// readTries bounds the looks at a directory that changes all the time.
	readTries = 100
	// rootsMax bounds the roots whose reads are counted apart.
	rootsMax = 64
)

// ErrNothing reports a root for which nothing was collected: errors.Is reports that it is
// fs.ErrNotExist, too.
var ErrNothing = fmt.Errorf("nothing was collected there: no server with tiering has run, or this is not its directory: %w", fs.ErrNotExist)

// ErrNoCollector reports that Words were asked for and no collector runs.
var ErrNoCollector = errors.New("no collector runs: start the server, or kvtier collect")

// errBusy reports a directory that changes all the time.
var errBusy = errors.New("the totals change all the time, try again")

// Read returns the state of a root. Where no collector runs it has the totals alone, and its Live is
// false. Words are never in it. The error is ErrNothing where there is nothing.
func Read(ctx context.Context, root string) (telemetry.State, error) {
	return within(ctx, root, func(root string) (telemetry.State, error) { return read(root, nil) })
}

// ReadWords does as Read, with the Words of one namespace. The error is ErrNoCollector where no
// collector runs.
func ReadWords(ctx context.Context, root, namespace string) (telemetry.State, error) {
	return within(ctx, root, func(root string) (telemetry.State, error) {
		s, err := read(root, &namespace)
		if err == nil && !s.Live || errors.Is(err, ErrNothing) {
			err = ErrNoCollector
		}
		return s, err
	})
}

// guards count the reads of each root that are left behind because its disk hangs.
var guards struct {
	sync.Mutex
	of map[string]*steady.Guard
}

func guardOf(root string) *steady.Guard {
	guards.Lock()
	defer guards.Unlock()
	g := guards.of[root]
	if g == nil {
		if guards.of == nil || len(guards.of) == rootsMax {
			guards.of = make(map[string]*steady.Guard)
		}
		g = new(steady.Guard)
		guards.of[root] = g
	}
	return g
}

// within bounds the time of a read.
func within(ctx context.Context, root string, read func(root string) (telemetry.State, error)) (telemetry.State, error) {
	abs, err := filepath.Abs(root)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	s, err := steady.Do(ctx, guardOf(abs), steady.Wait{Most: readMost, Grace: readMost / 20}, func() (telemetry.State, error) {
		return read(abs)
	}, func(telemetry.State, error) {})
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	return s, nil
}

// read looks at a root's files until nobody has changed the totals meanwhile.
func read(root string, namespace *string) (telemetry.State, error) {
	dir := filepath.Join(root, directoryName)
	owner, err := ownerOf(dir, true)
	if errors.Is(err, fs.ErrNotExist) {
		return telemetry.State{}, ErrNothing
	}
	for try := 0; err == nil; try++ {
		var l *look
		if l, err = lookAt(dir, owner); err == nil {
			s := stateOf(root, l.totals, l.accounts, time.Now())
			tellSilent(&s, dir)
			promptsOf(&s, l.prompts)
			keepWords(&s, namespace)
			if !l.live {
				s.Live, s.Processes, s.Tiers, s.Prompts = false, []telemetry.ProcessState{}, []telemetry.Tier{}, []telemetry.StatePrompt{}
				foldFor(root, owner, l)
			}
			return s, nil
		}
		if errors.Is(err, errBusy) && try < readTries {
			err = nil
		}
	}
	return telemetry.State{}, err
}

// look is the content of a directory at one moment.
type look struct {
	live     bool
	totals   *totals
	accounts []account
	prompts  []*report // also of processes that have ended
	past     bool      // there are files of processes that have ended
}

// lookAt reads a directory, or returns errBusy when a process was added to the totals meanwhile:
// it would be in both, or in neither.
func lookAt(dir string, owner int) (*look, error) {
	path := filepath.Join(dir, fileName)
	hold, err := vfs.OS.Open(path) // so that no other file gets its number
	var info fs.FileInfo
	if err == nil {
		defer hold.Close()
		info, err = hold.Stat()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	l := &look{live: collects(dir)}
	var read fs.FileInfo
	if l.totals, read, err = readTotals(vfs.OS, path, owner, time.Now()); err != nil {
		return nil, err
	}
	all, err := list(vfs.OS, dir)
	if err != nil {
		return nil, err
	}
	if info == nil && len(all) == 0 && !l.live {
		return nil, ErrNothing
	}
	l.read(dir, owner, all)
	now, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && info == nil && read == nil:
	case err != nil || info == nil || read == nil || !os.SameFile(info, read) || !os.SameFile(info, now):
		return nil, errBusy
	}
	return l, nil
}

// read reads the files of processes. One that cannot be read is passed over.
func (l *look) read(dir string, owner int, all map[string]files) {
	folded := make(map[string]bool)
	for _, name := range l.totals.Folded {
		folded[name] = true
	}
	boot, _ := proc.Boot()
	for name, there := range all {
		path := filepath.Join(dir, name)
		locked, _ := vfs.Held(path + ownEnd)
		l.past = l.past || !locked
		a := account{named: named{name: name}}
		if there[numbersEnd] && !folded[name] {
			a.report, _ = readReport(vfs.OS, path+numbersEnd, owner)
		}
		if there[wordsEnd] || a.report != nil { // the words are written before
			a.prompts, _ = readReport(vfs.OS, path+wordsEnd, owner)
		}
		if a.prompts != nil {
			l.prompts = append(l.prompts, a.prompts)
		}
		if a.report != nil {
			here := boot == "" || a.Process.Boot == "" || a.Process.Boot == boot
			a.runs = locked && here
			l.accounts = append(l.accounts, a)
		}
	}
}

// foldFor adds processes that have ended to the totals, for a reader of its own files. No collector
// runs, which would do so.
func foldFor(root string, owner int, l *look) {
	if !l.past || owner != os.Geteuid() {
		return
	}
	opt := Options{}.withDefaults()
	if p, err := newPlace(root, opt); err == nil {
		_ = folder{place: p, log: slog.New(slog.DiscardHandler), now: time.Now}.fold() // a file that is not added stays
	}
}
