package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
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
// With beside, llama-server may still read the slot, if later is not nil: it then answers the prompt after that,
// and the caller calls later.end before it uses the slot's sequence or the plan.
func (r *restorer) restore(ctx context.Context, s *slot, tokens []int32, media []llamastate.Medium, beside bool) (held int, p *plan, got restored, later *load) {
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
	p = r.planner.plan(ctx, s.tenant, tokens, media, held, loss)
	if !p.worth() {
		if p.unread == why.UnreadNone && p.found > held {
			p.unread = why.UnreadQuicker // than replacing the slot for so few tokens
		}
		// Drafts fail where rows of theirs are missing, also of a prompt that the slot holds.
		if spoiled && (held < restoreMin || r.actor.drafts) && r.actor.empty(ctx, s) {
			held = 0
		}
		return held, p, got, nil
	}
	if !drops {
		r.save(ctx, s)
	}
	f, err := r.loader.build(ctx, p)
	if err == nil && f == nil { // too few pages were read in time
		return held, p, got, nil
	}
	l := &load{restorer: r, s: s, p: p, held: held, prompt: len(tokens), began: began, file: f}
	if err != nil {
		r.log.Warn("kv tier: pages not restored, the prompt is computed", "slot", s.id, "error", err)
		p.notRead(0, why.UnreadRoom)
		return held, p, got, nil
	}
	if s.expected.tokens > 0 {
		l.held = 0 // all that the slot held is read again
	}
	if beside && !f.OnDisk() { // a disk may hang
		l.opened = f.Opened()
	}
	if l.begin(ctx); l.reads() {
		return held, p, got, l
	}
	return held, p, l.end(), nil
}

// once reports whether one action restores a slot, whatever its answer: no other slot takes room, and
// nothing is erased or computed before the request.
func (r *restorer) once() bool {
	return len(r.table.slots) == 1 && !r.actor.drafts && !r.form.shape.HasEnd()
}

// load is a file of a plan's pages that the engine restores into a slot.
type load struct {
	*restorer
	s      *slot
	p      *plan // nobody changes it before end
	held   int   // tokens of the prompt that the slot held before
	prompt int   // tokens
	file   *slotfile.File
	opened <-chan struct{} // closed when the engine opens the file; nil if nobody looks
	began  time.Time       // the look-up
	got    restored        // read it after done
	done   chan error
}

// begin has the engine restore the file, which replaces all that the slot holds.
func (l *load) begin(ctx context.Context) {
	l.table.breakUnknown(l.s)
	l.s.emptied()
	l.s.broken = true // until the engine has answered
	l.done = make(chan error, 1)
	go func() {
		began := time.Now()
		err := l.into(ctx, l.s, l.file.Name, len(l.p.tokens), l.opened, func() { l.files.drop(l.file) })
		l.note(err, time.Since(began))
		l.done <- err
	}()
}

// note notes what the engine has made of the file, and drops it.
func (l *load) note(err error, loading time.Duration) {
	switch {
	case err == nil && l.file.Streamed():
		for _, ref := range l.p.refs {
			l.gate.CountRead(ref.Tier)
		}
	case err == nil:
		l.gate.Rates.Stepped(l.form.costs(l.p), loading)
	default:
		l.log.Warn("kv tier: pages not restored, the prompt is computed", "slot", l.s.id, "error", err)
		if errors.Is(err, errHeldBack) {
			return
		}
		l.files.Refused(l.file)
	}
	l.files.drop(l.file)
	if err == nil {
		took := time.Since(l.began)
		l.log.Info("kv tier: restored", "slot", l.s.id, "tokens", len(l.p.tokens), "lossy", l.p.lossy(), "prompt", l.prompt, "took", took)
		l.got = countRestored(l.p, l.held, took)
		l.meter.Add("ollama_kv_restored_bytes_total", float64(l.got.bytes))
	}
}

// reads waits until the engine reads the file, and reports whether it does: no request begins in the slot
// before the engine has read all of it, or has failed.
func (l *load) reads() bool {
	select {
	case <-l.opened:
		return true
	case err := <-l.done:
		l.done <- err
		return false
	}
}

// end waits for the engine, and returns what the slot has got.
func (l *load) end() restored {
	if err := <-l.done; err != nil {
		l.p.notRead(0, why.UnreadRoom)
		return restored{}
	}
	s := l.s
	s.tokens, s.ends, s.loaded = l.p.tokens, []int{len(l.p.tokens)}, len(l.p.tokens)
	s.lossy = l.p.lossy() > 0
	s.broken = s.lossy
	return l.got
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

// into has the engine restore a file into a slot, for which other slots may be emptied.
func (r *restorer) into(ctx context.Context, s *slot, name string, tokens int, begun <-chan struct{}, late func()) error {
	err := r.actor.restore(ctx, s, name, begun, late)
	for errors.Is(err, errRefused) && r.makeRoom(ctx, s, tokens) {
		err = r.actor.restore(ctx, s, name, begun, late)
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
