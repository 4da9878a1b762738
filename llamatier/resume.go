package llamatier

import (
	"context"
	"time"
)

// Served names a request that a slot has served.
type Served struct {
	Slot  int
	begun uint64 // requests that had begun in the slot
}

// Served names the request of a turn.
func (u *Turn) Served() Served { return u.served }

// Resume begins a request that goes on where a slot's last request has ended: its prompt has few tokens
// behind those of that prompt. So the tokens need not be known before the engine gets the request: the
// caller calls Learn before End or Drop. Resume returns nil unless the slot still holds the prompt, and
// nothing speaks against storing what will be computed behind it.
func (t *Tier) Resume(ctx context.Context, last Served, cancel context.CancelFunc) *Turn {
	if t.restorer.form.shape.HasEnd() || t.obstacles.off.Load() {
		return nil // such a slot cannot go back to where the prompts part, or nothing is stored
	}
	s := t.table.takeAfter(last)
	if s == nil {
		return nil
	}
	prompt := len(s.tokens)
	if prompt < restoreMin || s.rest != nil || s.unheard() || t.table.spoiled(s) || t.restorer.held(ctx, s, s.tokens) < prompt {
		t.table.giveBack(s)
		return nil
	}
	u := &Turn{to: t.accounting, s: s, began: time.Now(), room: t.context, held: prompt, counted: t.counter.least()}
	u.served = t.table.begin(s, cancel)
	return u
}

// takeAfter makes the slot of a request busy, if it is free, no other request has begun in it since and
// none runs of which nothing is known. Otherwise it returns nil.
func (t *table) takeAfter(last Served) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[last.Slot]
	if t.closed || t.unknown > 0 || s.busy || s.acting || s.begun != last.begun {
		return nil
	}
	return s.takeLocked()
}

// Learn notes the prompt of a request that Resume has begun; without tokens, its rows are not known.
func (u *Turn) Learn(r Request) {
	r = u.to.album.expand(r)
	r.Private = len(r.Tokens) == 0
	u.request = r
	u.held = min(u.held, commonPrefix(u.s.tokens, r.Tokens))
	u.TooLong = len(r.Tokens) >= u.room
	u.s.rewound(u.held)
	u.asked = inquire(u.to.why, r)
	if u.asked != nil {
		u.asked.Facts.Found = u.held
	}
}
