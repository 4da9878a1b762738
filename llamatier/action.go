package llamatier

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// actor has the engine carry out actions on slots.
type actor struct {
	engine    *Engine
	asker     *asker
	drafts    bool // Options.Drafts
	patience  *patience
	obstacles *obstacles
	table     *table
	log       *slog.Logger
}

// errHeldBack reports an action that llama-server carries out later.
var errHeldBack = because(CauseBusy, "another request runs in it, and llama-server holds an action back")

// act carries out an action on a busy slot. llama-server holds an action back while a request
// runs in the slot, which can take hours: act returns errHeldBack then, nothing is saved from
// the slot or restored into it until the action was carried out, and then late is called, which
// may close the action's file. An action that has begun is not held back. An engine that does not answer at
// all turns the Tier off.
func (a *actor) act(s *slot, do func() error, begun <-chan struct{}, late func()) error {
	leave, err := a.table.enter(s)
	if err != nil {
		return err
	}
	defer leave()
	done := make(chan error, 1)
	go func() { done <- do() }()
	looks, end := time.NewTicker(a.patience.look), time.After(a.patience.end)
	defer looks.Stop()
	for held := false; !held; {
		select {
		case err := <-done:
			return err
		case <-looks.C:
			held = a.runs(s)
			select {
			case <-begun:
				held = false
			default:
			}
		case <-end:
			if !a.runs(s) {
				a.obstacles.turnOff(telemetry.ObstacleEngine, unanswered)
			}
			held = true
		}
	}
	a.table.holdBack(s, true)
	go a.await(s, done, late)
	return errHeldBack
}

// await waits for an action that llama-server holds back.
func (a *actor) await(s *slot, done <-chan error, late func()) {
	looks := time.NewTicker(a.patience.end)
	defer looks.Stop()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-looks.C:
			if !a.runs(s) {
				a.obstacles.turnOff(telemetry.ObstacleEngine, unanswered)
			}
		}
	}
	late()
	a.table.holdBack(s, false)
}

// runs reports whether llama-server runs a request in a slot, and says so.
func (a *actor) runs(s *slot) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	slots, err := a.engine.Slots(ctx)
	return err == nil && s.id < len(slots) && slots[s.id].Running
}

// save has the engine save a slot into a file.
func (a *actor) save(ctx context.Context, s *slot, name string, late func()) error {
	return a.act(s, func() error { return a.engine.Save(ctx, s.id, name) }, nil, late)
}

// restore has the engine replace a slot by that of a file. A file has no rows of drafts. llama-server fails
// the next request where those in memory end before the file does, and drafts from another conversation where
// they do not; only erasing the slot removes them. Without rows, they begin where the file ends. begun is
// closed when llama-server opens the file; nil if nobody looks.
func (a *actor) restore(ctx context.Context, s *slot, name string, begun <-chan struct{}, late func()) (err error) {
	done, load := a.table.replacing(s), a.load
	if a.drafts {
		load = a.loadErased
	}
	err = load(ctx, s, name, begun, late)
	done(err)
	return err
}

func (a *actor) load(ctx context.Context, s *slot, name string, begun <-chan struct{}, late func()) error {
	return a.act(s, func() error { return a.engine.Restore(ctx, s.id, name) }, begun, late)
}

func (a *actor) erase(ctx context.Context, s *slot, late func()) error {
	return a.act(s, func() error { return a.engine.Erase(ctx, s.id) }, nil, late)
}

// errBetween reports that another request ran in a slot while it was replaced.
var errBetween = because(CauseBusy, "another request ran in it while it was replaced")

// loadErased loads a file into a slot without rows of drafts. llama-server may run a request that names
// no slot between the two actions: the slot is then erased once more.
func (a *actor) loadErased(ctx context.Context, s *slot, name string, _ <-chan struct{}, late func()) error {
	before, err := a.asker.idle(ctx, s.id)
	if err != nil {
		return err
	}
	if err := a.erase(ctx, s, late); err != nil {
		return err
	}
	// A file that is loaded late finds rows of the requests before it.
	eraseLate := func() {
		if err := a.engine.Erase(context.WithoutCancel(ctx), s.id); err != nil {
			a.log.Debug("kv tier: slot not emptied", "slot", s.id, "error", err)
		}
		late()
	}
	if err := a.load(ctx, s, name, nil, eraseLate); err != nil {
		return err
	}
	after, err := a.asker.idle(ctx, s.id)
	if err == nil && before.Task == after.Task {
		return nil
	}
	if err := a.erase(ctx, s, func() {}); err != nil {
		return err
	}
	s.emptied()
	return cmp.Or(err, errBetween)
}

// empty empties a busy slot, and reports whether it did.
func (a *actor) empty(ctx context.Context, s *slot) bool {
	done := a.table.replacing(s)
	err := a.erase(ctx, s, func() {})
	if done(err); err != nil {
		a.log.Debug("kv tier: slot not emptied", "slot", s.id, "error", err)
		return false
	}
	s.emptied()
	return true
}
