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
	idle := t.table.takeIdle(s)
	if idle == nil {
		return false
	}
	defer t.table.give(idle)
	t.saver.save(ctx, idle, true)
	return t.actor.empty(ctx, idle)
}

// restoreInto has the engine restore a file into a slot, for which other slots may be emptied.
func (t *Tier) restoreInto(ctx context.Context, s *slot, name string, tokens int, late func()) error {
	err := t.actor.restore(ctx, s, name, late)
	for errors.Is(err, errRefused) && t.makeRoom(ctx, s, tokens) {
		err = t.actor.restore(ctx, s, name, late)
	}
	return err
}
