package llamatier

import (
	"context"
	"errors"
)

// With one cache for all slots, llama-server empties idle slots when a slot that computes needs
// their room, but not for a restore.

// makeRoom empties the slot that has been idle for longest, if the tokens of all slots leave no
// room for a number of tokens in a slot, and reports whether it did.
func (t *Tier) makeRoom(ctx context.Context, s *slot, tokens int) bool {
	if t.opt.Shape.Caches[0].Streams != 1 {
		return false
	}
	slots, err := t.asker.slots(ctx)
	if err != nil || s.id >= len(slots) {
		return false
	}
	for id, other := range slots {
		if id != s.id {
			tokens += other.Held
		}
	}
	if tokens <= slots[s.id].Context {
		return false
	}
	idle := t.takeIdle(s)
	if idle == nil {
		return false
	}
	defer t.give(idle)
	t.save(ctx, idle, true)
	return t.empty(ctx, idle)
}

// empty empties a busy slot, and reports whether it did.
func (t *Tier) empty(ctx context.Context, s *slot) bool {
	erase := func() error { return t.opt.Engine.Erase(ctx, s.id) }
	if err := t.replace(s, erase, func() {}); err != nil {
		t.opt.Log.Debug("kv tier: slot not emptied", "slot", s.id, "error", err)
		return false
	}
	s.emptied()
	return true
}

// replace carries out an action after which a busy slot holds nothing from before. A request of
// which nothing is known may use the slot as soon as llama-server has carried out the action.
func (t *Tier) replace(s *slot, do func() error, late func()) error {
	t.mu.Lock()
	was := s.unknown
	s.unknown = false
	t.mu.Unlock()
	err := t.act(s, do, late)
	t.mu.Lock()
	defer t.mu.Unlock()
	s.unknown = s.unknown || was && err != nil
	return err
}

// restoreInto has the engine restore a file into a slot, for which other slots may be emptied.
func (t *Tier) restoreInto(ctx context.Context, s *slot, name string, tokens int, late func()) error {
	restore := func() error { return t.opt.Engine.Restore(ctx, s.id, name) }
	err := t.replace(s, restore, late)
	for errors.Is(err, errRefused) && t.makeRoom(ctx, s, tokens) {
		err = t.replace(s, restore, late)
	}
	return err
}
