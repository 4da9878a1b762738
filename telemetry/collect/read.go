package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

// readMost bounds a read in all.
const readMost = 5 * time.Second

// ErrNothing reports a root for which nothing was collected: errors.Is reports that it is
// fs.ErrNotExist, too.
var ErrNothing = fmt.Errorf("nothing was collected there: no server with tiering has run, or this is not its directory: %w", fs.ErrNotExist)

// Read returns the state of a root. Words are never in it. The error is ErrNothing where there is nothing.
func Read(ctx context.Context, root string) (telemetry.State, error) {
	return read(ctx, root, nil)
}

// ReadWords does as Read, with the Words of one namespace.
func ReadWords(ctx context.Context, root, namespace string) (telemetry.State, error) {
	return read(ctx, root, func(of string) bool { return of == namespace })
}

func read(ctx context.Context, root string, keep func(namespace string) bool) (telemetry.State, error) {
	p, err := newPlace(root)
	if err != nil {
		return telemetry.State{}, err
	}
	s, err := p.state(ctx)
	if err != nil {
		return s, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	addElastic(&s, segment.List)
	return s.WithWords(keep), nil
}

// reads, folds and forgets count the operations that are left behind because a disk hangs: that of one
// root keeps nobody from reading another.
var reads, folds, forgets guards

type guards struct{ sync.Map }

func (g *guards) of(root string) *steady.Guard {
	guard, _ := g.LoadOrStore(root, new(steady.Guard))
	return guard.(*steady.Guard)
}

type told struct {
	telemetry.State      // with all Words
	fold            bool // there is something to add to the totals, which this user may do
}

// state reads the state with all Words, and then adds processes that have ended to the totals.
func (p *place) state(ctx context.Context) (telemetry.State, error) {
	if err := ctx.Err(); err != nil {
		return telemetry.State{}, err
	}
	t, err := steady.Do(ctx, reads.of(p.root), steady.Wait{Most: readMost, Grace: readMost / 20}, p.tell, nil)
	if t.fold {
		fold := func() (any, error) { return nil, p.fold() }
		_, _ = steady.Do(ctx, folds.of(p.root), steady.Wait{Most: p.patience}, fold, nil) // what is not added stays
	}
	return t.State, err
}

// tell reads the directory, also one of another user, and changes nothing there. It asks the disk, which
// may hang, why processes are silent.
func (p *place) tell() (t told, err error) {
	owner, err := ownerOf(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return t, ErrNothing
	}
	if err != nil {
		return t, err
	}
	of := &place{root: p.root, dir: p.dir, fs: vfs.OS, owner: owner}
	names, err := of.list()
	if err == nil && len(names) > processesMax {
		t.fold = owner == p.owner
		err = fmt.Errorf("%w: more than %d processes have files in %s", errContent, processesMax, p.dir)
	}
	if err != nil {
		return t, err
	}
	entries := of.scan(names)
	totals, fresh, err := of.readTotals()
	if err != nil {
		return t, err
	}
	if fresh && len(entries) == 0 {
		return t, ErrNothing
	}
	totals.leaveOut(entries)
	t.fold = fresh
	for i := range entries {
		e := &entries[i]
		t.fold = t.fold || e.ended && !e.past
		e.prompts, _ = of.readReport(e.name + wordsEnd) // those that cannot be read are left out
	}
	t.fold = t.fold && owner == p.owner
	t.State = totals.state(p.root, entries)
	tellSilent(&t.State, p.dir)
	return t, nil
}
