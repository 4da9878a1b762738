package llamatier

import (
	"context"
	"errors"
)

// With one cache for all slots, llama-server empties idle slots when a slot that computes needs
// their room, but not for a restore.

// makeRoom empties the slot that has been idle for longest, if the tokens of all slots leave no
// room for a number of tokens in a slot, and reports whether it did.
func (r *restorer) makeRoom(ctx context.Context, s *slot, tokens int) bool {
	if r.form.shape.Caches[0].Streams != 1 {
		return false
	}
	slots, err := r.asker.slots(ctx)
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
	idle := r.table.takeIdle(s)
	if idle == nil {
		return false
	}
	defer r.table.give(idle)
	r.save(ctx, idle, true)
	return r.actor.empty(ctx, idle)
}

// into has the engine restore a file into a slot, for which other slots may be emptied.
func (r *restorer) into(ctx context.Context, s *slot, name string, tokens int, late func()) error {
	err := r.actor.restore(ctx, s, name, late)
	for errors.Is(err, errRefused) && r.makeRoom(ctx, s, tokens) {
		err = r.actor.restore(ctx, s, name, late)
	}
	return err
}
