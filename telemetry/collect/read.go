package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// readMost bounds a read in all.
	readMost = 5 * time.Second
	// readTries bounds the looks at a directory that changes all the time.
	readTries = 100
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
	return read(ctx, root, nil, Options{})
}

// ReadWords does as Read, with the Words of one namespace. The error is ErrNoCollector where no
// collector runs.
func ReadWords(ctx context.Context, root, namespace string) (telemetry.State, error) {
	s, err := read(ctx, root, func(of string) bool { return of == namespace }, Options{})
	if err == nil && !s.Live || errors.Is(err, ErrNothing) {
		err = fmt.Errorf("read telemetry of %s: %w", root, ErrNoCollector)
	}
	return s, err
}

// reads and folds count the operations of readers that are left behind because a disk hangs: that of one
// root keeps nobody from reading another.
var reads, folds guards

type guards struct{ sync.Map }

func (g *guards) of(root string) *steady.Guard {
	guard, _ := g.LoadOrStore(root, new(steady.Guard))
	return guard.(*steady.Guard)
}

// read reads a root with the words of namespaces that keep accepts. Processes that have ended are then
// added to the totals: no collector runs, which would do so.
func read(ctx context.Context, root string, keep func(namespace string) bool, opt Options) (telemetry.State, error) {
	opt = opt.withDefaults()
	p, err := newPlace(root, opt)
	if err == nil {
		err = ctx.Err()
	}
	var l *look
	if err == nil {
		l, err = steady.Do(ctx, reads.of(p.root), steady.Wait{Most: readMost, Grace: readMost / 20}, p.tell, func(*look, error) {})
	}
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	s := l.told
	if l.live {
		return s.WithWords(keep), nil
	}
	if l.ended && l.owner == p.owner {
		f := folder{place: p, log: slog.New(slog.DiscardHandler)}
		_, _ = steady.Do(ctx, folds.of(p.root), steady.Wait{Most: opt.Intervals.Disk}, func() (any, error) { return nil, f.fold(p.collects()) }, func(any, error) {}) // what is not added stays
	}
	s.Live, s.Processes, s.Tiers, s.Prompts = false, []telemetry.ProcessState{}, []telemetry.Tier{}, []telemetry.StatePrompt{}
	return s, nil
}

// look is the content of a directory at one moment.
type look struct {
	live    bool
	owner   int
	totals  *totals
	entries []entry
	ended   bool            // there are files of processes that have ended
	told    telemetry.State // by tell
}

// tell looks, and makes the state. It asks the disk, which may hang, why processes are silent.
func (p *place) tell() (*look, error) {
	l, err := p.look()
	if err == nil {
		l.told = l.state(p.root, time.Now())
		tellSilent(&l.told, p.dir)
	}
	return l, err
}

// look reads a directory, also one of another user, and changes nothing there. It looks again when a
// process was added to the totals meanwhile, which would be in both, or in neither.
func (p *place) look() (*look, error) {
	owner, err := ownerOf(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNothing
	}
	if err != nil {
		return nil, err
	}
	p = &place{dir: p.dir, fs: vfs.OS, owner: owner, now: p.now}
	for range readTries {
		l := &look{live: p.collects(), owner: owner}
		t, before, err := p.readTotals()
		if err != nil {
			return nil, err
		}
		l.totals = t
		if l.entries, err = p.scan(t); err != nil {
			return nil, err
		}
		if before == nil && len(l.entries) == 0 && !l.live {
			return nil, ErrNothing
		}
		for i := range l.entries {
			e := &l.entries[i]
			l.ended = l.ended || e.ended
			e.prompts, _ = p.readPrompts(e.name + wordsEnd) // those that cannot be read are left out
		}
		after, err := p.read(fileName, fileBytesMax)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if bytes.Equal(before, after) {
			return l, nil
		}
	}
	return nil, errBusy
}
