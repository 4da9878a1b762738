package kvcache

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry"
)

// run restores a prompt for a request, see [TieredCausal.Restore].
func (r *restoring) run(ctx context.Context, inputs []*input.Input) error {
	started := time.Now()
	r.begin(len(inputs), started)
	r.takeEarly()
	defer func() { r.hold(r.result.Held) }()
	r.prompt, _ = r.identity.read(inputs)
	r.inquire(len(r.prompt.tokens) < len(inputs))
	if r.identity.reach > 0 && r.inFlight.image(r.seq) {
		r.unlocked(func() { _ = r.inFlight.awaitBuilt(ctx) }) // before, the slot does not know where the image's batch ended
	}
	r.recall()
	r.limit = min(len(inputs)-1, len(r.prompt.tokens)) // the last token is computed for its logits
	if r.caches.stateful() && r.result.Held > 0 && !r.caches.states.HasState(r.seq) {
		r.clear() // rows without state are of no use
	}
	r.recheck(ctx)
	err := r.restoreExact(ctx)
	r.why.unreadAfter(r.seq, err)
	if err == nil && r.runs != nil && !r.caches.stateful() {
		err = r.reuse(ctx)
	}
	r.result.Took = time.Since(started)
	r.count()
	if ctx.Err() != nil {
		r.abandon()
		return ctx.Err()
	}
	if errors.Is(err, tier.ErrNotFound) {
		r.log.Debug("kv tier: restore stopped early, a page was replaced or evicted meanwhile", "slot", r.seq, "restored", r.result.Tokens, "error", err)
	} else if err != nil {
		r.log.Warn("kv tier: restore stopped early, the rest of the prompt is computed", "slot", r.seq, "restored", r.result.Tokens, "error", err)
	}
	return nil
}

// begin opens the request's account.
func (r *restoring) begin(tokens int, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accounts.begin(r.seq, tokens, began)
	r.from = engine.Origins(nil).Add(r.result.Held, telemetry.PlaceSlot)
}

// inquire opens an inquiry about the prompt. nameless: an image without identity follows the prompt.
func (r *restoring) inquire(nameless bool) {
	if r.why.Recents == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.accounts.open[r.seq]; a != nil { // the cache may have been closed meanwhile
		r.why.endedLocked(r.seq, r.slots.at(r.seq))
		a.asked = r.why.beginLocked(r.seq, &r.prompt, nameless)
	}
}

// takeEarly counts the rows of the slot that came while the model loaded as restored for this, the
// first request. The request finds a beginning of its prompt in the slot.
func (r *restoring) takeEarly() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(r.seq)
	early := s.takeEarly()
	held := r.result.Held
	if n := min(early.Tokens, held); n > 0 {
		r.from = early.from.Cut(held).Add(held, telemetry.PlaceSlot)
		r.result.Tokens, r.result.Early, r.result.Lossy = n, n, r.from.Lossy()
		r.result.Bytes = early.Bytes * int64(n) / int64(early.Tokens)
		r.result.Tiers = slices.Clone(early.Tiers)
	}
}

// recall takes from the slot where the batches of the prompt's images ended. Where the prompt goes
// on with other text, the slot keeps the image's rows, as in stock Ollama, and no row from the
// image on is stored.
func (r *restoring) recall() {
	if r.identity.reach == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(r.seq)
	s.foreign = math.MaxInt
	r.prompt.media = slices.Clone(r.prompt.media) // the inquiry compares prompts, wherever batches ended
	for k, m := range s.media {
		begin, end := int(m.Offset), int(m.Offset)+m.Reach()
		known := k < len(r.prompt.media) && m.SameImage(r.prompt.media[k])
		switch {
		case known && end <= len(r.prompt.tokens) && r.prompt.reached(k, end) == m:
			r.prompt.media[k] = m
		case begin < r.result.Held:
			s.foreign = begin
			return
		default:
			return
		}
	}
}

// abandon ends the account of a request that was given up during its restore.
func (r *restoring) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accounts.end(r.seq)
}

// count adds the result of the restore to the counters.
func (r *restoring) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accounts.restored(r.seq, &r.result, r.from)
	if q := r.why.restoredLocked(r.seq, r.result.Held, r.result.Shifted > 0, r.caches.divisible()); q != nil {
		if at := q.Facts.At(); at < r.limit && r.slots.elsewhere(r.seq, at, &r.prompt) {
			q.Facts.Slot = true
		}
	}
	if r.result.Tokens > 0 {
		r.stats.Restores++
		r.stats.RestoredTokens += int64(r.result.Tokens)
		r.stats.RestoredBytes += r.result.Bytes
		r.stats.ShiftedTokens += int64(r.result.Shifted)
		r.stats.LossyTokens += int64(r.result.Lossy)
	}
}
