package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// restorer puts stored pages into slots.
type restorer struct {
	form    form
	table   *table
	asker   *asker
	actor   *actor
	planner *planner
	loader  *loader
	files   *files
	gate    *engine.Gate
	meter   *telemetry.Meter
	log     *slog.Logger

	save func(ctx context.Context, s *slot) // before a slot's tokens are dropped, if it pays
}

// restore puts stored pages of a prompt into a busy slot, and returns the number of tokens that
// the slot held before, and the pages that were found. A slot whose rows must not be stored is of less
// use: it is replaced at the price of a page that must be computed again.
func (r *restorer) restore(ctx context.Context, s *slot, tokens []int32, media []llamastate.Medium) (held int, p *plan, got restored) {
	held = r.held(ctx, s, tokens)
	drops := held < len(s.tokens)
	if drops {
		r.save(ctx, s) // the engine is about to drop tokens
	}
	held = s.keeps(tokens, r.form.shape.HasEnd())
	began := time.Now()
	spoiled, loss := r.table.spoiled(s), 0
	if spoiled {
		loss = min(held, r.form.pageTokens+restoreMin)
	}
	p = r.planner.plan(ctx, tokens, media, held, loss)
	if !p.worth() {
		if p.unread == why.UnreadNone && p.found > held {
			p.unread = why.UnreadQuicker // than replacing the slot for so few tokens
		}
		// Drafts fail where rows of theirs are missing, also of a prompt that the slot holds.
		if spoiled && (held < restoreMin || r.actor.drafts) && r.actor.empty(ctx, s) {
			held = 0
		}
		return held, p, restored{}
	}
	if !drops {
		r.save(ctx, s)
	}
	if err := r.try(ctx, s, p); err != nil {
		r.log.Warn("kv tier: pages not restored, the prompt is computed", "slot", s.id, "error", err)
		p.notRead(0, why.UnreadRoom)
		return held, p, restored{}
	}
	if !p.worth() { // its tier became slow
		return held, p, restored{}
	}
	took := time.Since(began)
	r.log.Info("kv tier: restored", "slot", s.id, "tokens", len(p.tokens), "lossy", p.lossy(), "prompt", len(tokens), "took", took)
	got = countRestored(p, held, took)
	r.meter.Add("ollama_kv_restored_bytes_total", float64(got.bytes))
	return held, p, got
}

// usedLately is the time after which a slot may be empty: llama-server may have slept.
const usedLately = time.Second

// held returns how many tokens of a prompt a busy slot holds. llama-server empties a slot when
// another one needs the room. The only slot keeps the tokens of its last request.
func (r *restorer) held(ctx context.Context, s *slot, tokens []int32) int {
	sure := len(r.table.slots) == 1 && !s.unheard() && !r.table.unknownIn(s) && time.Since(s.used) < usedLately
	if !sure && commonPrefix(s.tokens, tokens) >= restoreMin {
		if p, err := r.asker.idle(ctx, s.id); err == nil {
			s.tokens = s.tokens[:min(p.Held, len(s.tokens))]
		}
	}
	return commonPrefix(s.tokens, tokens)
}

// try restores a plan's pages. The plan is cut to the pages that were read in time; the
// slot stays as it is if they are not worth it any more.
func (r *restorer) try(ctx context.Context, s *slot, p *plan) error {
	f, err := r.loader.build(ctx, p)
	if err != nil || f == nil {
		return err
	}
	s.emptied()
	s.broken = true // until the engine has answered
	began := time.Now()
	err = r.into(ctx, s, f.Name, len(p.tokens), func() { r.files.drop(f) })
	switch {
	case errors.Is(err, errHeldBack):
		return err
	case err != nil:
		r.files.Refused(f)
	}
	r.files.drop(f)
	if err != nil {
		return err
	}
	if f.Streamed() {
		for _, ref := range p.refs {
			r.gate.CountRead(ref.Tier)
		}
	} else {
		r.gate.Rates.Stepped(r.form.costs(p), time.Since(began))
	}
	s.tokens, s.ends, s.loaded = p.tokens, []int{len(p.tokens)}, len(p.tokens)
	s.lossy = p.lossy() > 0
	s.broken = s.lossy
	return nil
}

// into has the engine restore a file into a slot, for which other slots may be emptied.
func (r *restorer) into(ctx context.Context, s *slot, name string, tokens int, late func()) error {
	err := r.actor.restore(ctx, s, name, late)
	for errors.Is(err, errRefused) && r.makeRoom(ctx, s, tokens) {
		err = r.actor.restore(ctx, s, name, late)
	}
	return err
}

// makeRoom empties the slot that has been idle for longest, if the tokens of all slots leave no
// room for a number of tokens in a slot, and reports whether it did. With one cache for all slots,
// llama-server empties idle slots when a slot that computes needs their room, but not for a restore.
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
	r.save(ctx, idle)
	return r.actor.empty(ctx, idle)
}
