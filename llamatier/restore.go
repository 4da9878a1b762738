package llamatier

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/telemetry/why"
)

// restore puts stored pages of a prompt into a busy slot, and returns the number of tokens that
// the slot held before, and the pages that were found. A slot whose rows must not be stored is of less use: it is replaced at
// the price of a page that must be computed again.
func (t *Tier) restore(ctx context.Context, s *slot, tokens []int32) (held int, p *plan, r restored) {
	held = t.held(ctx, s, tokens)
	if held < len(s.tokens) {
		t.saver.save(ctx, s, true) // the engine is about to drop tokens
		held = commonPrefix(s.tokens, tokens)
	}
	s.rewound(held)
	if t.opt.Shape.HasEnd() && held < min(s.loaded, len(s.tokens)) {
		held, s.loaded = 0, 0 // the engine would begin anew
	}
	began := time.Now()
	spoiled, loss := t.table.spoiled(s), 0
	if spoiled {
		loss = min(held, t.opt.PageTokens+restoreMin)
	}
	p = t.planner.plan(ctx, tokens, held, loss)
	if !p.worth() {
		if p.unread == why.UnreadNone && p.found > held {
			p.unread = why.UnreadQuicker // than replacing the slot for so few tokens
		}
		if spoiled && held < restoreMin {
			t.actor.empty(ctx, s)
		}
		return held, p, restored{}
	}
	t.saver.save(ctx, s, true)
	if err := t.tryRestore(ctx, s, p); err != nil {
		t.opt.Log.Warn("kv tier: pages not restored, the prompt is computed", "slot", s.id, "error", err)
		p.notRead(0, why.UnreadRoom)
		return held, p, restored{}
	}
	if !p.worth() { // its tier became slow
		return held, p, restored{}
	}
	took := time.Since(began)
	t.opt.Log.Info("kv tier: restored", "slot", s.id, "tokens", len(p.tokens), "lossy", p.lossy(), "prompt", len(tokens), "took", took)
	return held, p, t.restoredFrom(p, held, took)
}

// usedLately is the time after which a slot may be empty: llama-server may have slept.
const usedLately = time.Second

// held returns how many tokens of a prompt a busy slot holds. llama-server empties a slot when
// another one needs the room. The only slot keeps the tokens of its last request.
func (t *Tier) held(ctx context.Context, s *slot, tokens []int32) int {
	sure := len(t.table.slots) == 1 && !s.unheard() && !t.table.unknownIn(s) && time.Since(s.used) < usedLately
	if !sure && commonPrefix(s.tokens, tokens) >= restoreMin {
		if p, err := t.asker.idle(ctx, s.id); err == nil {
			s.tokens = s.tokens[:min(p.Held, len(s.tokens))]
		}
	}
	return commonPrefix(s.tokens, tokens)
}

// tryRestore restores a plan's pages. The plan is cut to the pages that were read in time; the
// slot stays as it is if they are not worth it any more.
func (t *Tier) tryRestore(ctx context.Context, s *slot, p *plan) error {
	f, err := t.loader.build(ctx, p)
	if err != nil || f == nil {
		return err
	}
	s.emptied()
	s.broken = true // until the engine has answered
	began := time.Now()
	err = t.restoreInto(ctx, s, f.Name, len(p.tokens), func() { t.files.drop(f) })
	switch {
	case errors.Is(err, errHeldBack):
		return err
	case err != nil:
		t.files.Refused(f)
	}
	t.files.drop(f)
	if err != nil {
		return err
	}
	if !f.Streamed() {
		t.opt.Rates.Stepped(t.form.costs(p), time.Since(began))
	}
	s.tokens, s.ends, s.loaded = p.tokens, []int{len(p.tokens)}, len(p.tokens)
	s.lossy = p.lossy() > 0
	s.broken = s.lossy
	return nil
}
