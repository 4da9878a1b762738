package kvcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Restored is the result of a restore.
type Restored struct {
	// Held counts the leading tokens of the prompt that the slot holds now.
	Held int
	// Tokens counts the tokens that came from the store.
	Tokens int
	// Shifted counts the restored tokens that were computed at another position, with other
	// text before them. Rows computed after shifted rows are not exact, and are not stored.
	Shifted int
	// Lossy counts the restored tokens from the first lossy page on, without shifted ones. These
	// rows and rows computed after them are not exact, and are not stored.
	Lossy int
	// Early counts the restored tokens that came while the model loaded.
	Early int
	// Bytes estimates the bytes read from the store.
	Bytes int64
	// Tiers names the tiers that were read, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}

// unlocked calls f without the runner's lock, which is held. The runner's lock is released
// here only.
func unlocked(lock sync.Locker, f func()) {
	lock.Unlock()
	defer lock.Lock()
	f()
}

// restorer is what every restore uses. mu is TieredCausal.mu, which guards slots, flights, device,
// sealer, accounts, why and stats.
type restorer struct {
	mu       *sync.Mutex
	slots    *slots
	flights  *flights
	device   *progress
	sealer   *sealer
	accounts *accounts
	why      *inquirer
	stats    *Stats

	caches   *caches
	identity *identity
	find     *finder
	reader   *reader
	remove   func(seq int, begin, end int32) error // TieredCausal.Remove
	meter    *telemetry.Meter
	log      *slog.Logger
	after    func(time.Duration) <-chan time.Time // time.After, except in tests
	poison   bool                                 // see Options.Poison

	runs   *runs.Index     // of text that may move; nil: none is reused
	filled <-chan struct{} // closed when runs has the pages of earlier processes
	runsBy time.Time       // no request waits longer for filled
	noRuns atomic.Bool     // the model cannot shift
}

// restoring is one restore. The runner's lock is held in all of its methods; functions
// passed to unlocked run without the lock.
type restoring struct {
	*restorer
	lock   sync.Locker
	hold   func(tokens int)
	seq    int
	prompt prompt // the inputs before the first without identity
	limit  int    // number of the prompt's tokens that may be restored
	ahead  bool   // no request wants the prompt yet
	result Restored
	from   origins // of the tokens that the slot holds
}

// unlocked first tells the runner how many tokens the slot holds, and then calls f without
// the runner's lock.
func (r *restoring) unlocked(f func()) {
	r.hold(r.result.Held)
	unlocked(r.lock, f)
}

// run restores a prompt for a request, see [TieredCausal.Restore].
func (r *restoring) run(ctx context.Context, inputs []*input.Input) error {
	started := time.Now()
	r.begin(len(inputs), started)
	r.takeEarly()
	defer func() { r.hold(r.result.Held) }()
	r.prompt, _ = r.identity.read(inputs)
	r.inquire(len(r.prompt.tokens) < len(inputs))
	if r.identity.reach > 0 && r.flights.image(r.seq) {
		r.unlocked(func() { _ = r.flights.awaitBuilt(ctx) }) // before, the slot does not know where the image's batch ended
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
	r.from = origins(nil).add(origin{end: r.result.Held, place: telemetry.PlaceSlot})
}

// inquire opens an inquiry about the prompt, with the account. nameless: the prompt goes on after an
// image without identity.
func (r *restoring) inquire(nameless bool) {
	if r.why.recents == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.accounts.open[r.seq]; a != nil { // the cache may have been closed meanwhile
		r.why.endedLocked(r.seq, r.slots.at(r.seq))
		r.why.beginLocked(a, &r.prompt, nameless)
	}
}

// lookedUp notes the result of looking the prompt's pages up.
func (r *restoring) lookedUp(p *plan, refs []diskstore.Ref, limit int, err error, parent pagefile.Key, start int) {
	if r.why.recents == nil || r.ahead {
		return
	}
	f := found{end: p.base, err: err}
	for _, ref := range refs {
		end := int(ref.Start) + ref.Tokens
		f.end, f.parted = max(f.end, min(end, limit)), ref.Tokens < ref.Stored && end < limit
	}
	f.queued = r.find.queue.any(extends(&p.prompt, r.find.size, f.end, parent, start))
	r.why.lookedUp(r.seq, f)
}

// restoreExact restores pages that follow from the prompt's beginning. After a failure the
// slot is empty, unless the slot is divisible.
func (r *restoring) restoreExact(ctx context.Context) error {
	_, complete, err := r.extend(ctx, r.chain(r.limit))
	if complete || r.caches.divisible() {
		return err
	}
	// A window and a state serve one position only: the rows that came in are of no use.
	limit := r.result.Held
	r.clear()
	if err != nil { // after a damaged page, try the pages before it
		if _, complete, _ = r.extend(ctx, r.chain(limit)); !complete {
			r.clear()
		}
	}
	return err
}

// clear empties the slot.
func (r *restoring) clear() {
	_ = r.remove(r.seq, 0, math.MaxInt32) // freeing to the end of a sequence cannot fail
	r.result, r.from = Restored{}, nil
}

// extend extends the slot by the pages that a lookup finds; a nil lookup finds none. found:
// there were pages. complete: all of them came in; otherwise the slot holds result.Held
// tokens in the groups that keep all positions.
func (r *restoring) extend(ctx context.Context, look lookUp) (found, complete bool, err error) {
	if look == nil {
		return false, true, nil
	}
	var p plan
	r.unlocked(func() { p, found = look(ctx) })
	if !found {
		return false, true, nil
	}
	if err := r.takeCells(&p); err != nil {
		r.log.Debug("kv tier: no room to restore", "slot", r.seq, "error", err)
		r.why.unread(&p, 0, why.UnreadRoom)
		return true, false, nil
	}
	var held int
	r.unlocked(func() { held, err = r.fill(ctx, &p) })
	if p.by != 0 && held > p.base {
		if turned := r.turn(ctx, &p, held); turned != nil {
			held, err = p.base, turned
		}
	}
	r.publish(&p, held)
	return true, held == p.end, err
}

// whenIdle calls run, which computes a graph of its own. No other graph is computed
// meanwhile: no batch, and no graph that the runner computes while it builds a batch, because
// that waits until BatchDone of the batch before has returned.
//
// The error is run's, or the context's when run was not called.
func (r *restoring) whenIdle(ctx context.Context, run func() error) (err error) {
	r.mu.Lock()
	job := r.flights.afterLocked(idleJob{run: run})
	r.mu.Unlock()
	select {
	case err = <-job.done:
	default:
		r.unlocked(func() { err = r.flights.await(ctx, job) })
	}
	return err
}

// takeCells frees the cells of rows that the plan replaces, reserves the plan's cells, and
// begins to wait for batches that may still use these cells. Afterwards the slot holds no
// row past the plan's base.
func (r *restoring) takeCells(p *plan) (err error) {
	base, have := p.wanted(p.base), r.result.Held
	r.cut(base)
	if p.state {
		r.result.Held = 0 // the state after base is being replaced
	}
	if base < have {
		if err := r.remove(p.seq, int32(base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	defer func() {
		if err != nil {
			r.caches.free(p.seq, base)
		}
	}()
	p.cells = make([][]int32, len(r.caches.groups))
	for g := range r.caches.groups {
		begin, end := p.wanted(p.begin[g]), p.wanted(p.end)
		p.cells[g], err = r.caches.groups[g].ReserveCells(p.seq, int32(begin), int32(end), p.preferred[g])
		if err != nil {
			return err
		}
	}
	if p.state {
		if err := r.caches.states.BeginState(p.seq); err != nil {
			return err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(p.seq)
	r.caches.lost(s, p.wanted(p.end)) // ReserveCells may have freed their cells
	p.free = r.flights.whenComputedLocked(r.device)
	return nil
}

// cut notes that the slot is about to keep only the rows before a position. Rows that came while the
// model loaded may be among the others: those of lossy pages are replaced.
func (r *restoring) cut(base int) {
	replaced := max(0, r.result.Early-base)
	r.result.Held, r.result.Tokens, r.result.Early = base, r.result.Tokens-replaced, r.result.Early-replaced
	r.from = r.from.cut(base)
	r.result.Lossy = r.from.lossy()
}

// publish adds positions [base, held) of a plan, whose rows came in, to the slot's mirror,
// and frees the cells from held on.
func (r *restoring) publish(p *plan, held int) {
	if held < p.end {
		r.caches.free(p.seq, p.wanted(held))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealer.noteDropped()
	s, base := r.slots.at(p.seq), p.wanted(p.base)
	r.result.Held = p.wanted(held)
	r.from = r.from.cameFrom(p, held)
	r.result.Lossy = r.from.lossy()
	r.result.Tokens += max(0, held-p.base)
	if p.by != 0 {
		s.broken = s.broken || held > p.base
		r.result.Shifted += r.result.Held - base
	} else {
		exact := min(held, p.lossyFrom())
		s.publish(p, exact, r.caches.groups, r.identity.reach > 0)
		if held > exact {
			s.broken, s.lossy = true, true
		}
	}
	for i, ref := range p.refs {
		if int(ref.Start) >= held {
			break
		}
		bytes, _ := p.bytes(&r.caches.geometry, i)
		r.result.Bytes += bytes
		r.meter.Add(moved(ref.Tier, telemetry.PlaceSlot), 1)
		if !slices.Contains(r.result.Tiers, ref.Tier) {
			r.result.Tiers = append(r.result.Tiers, ref.Tier)
		}
		if start, end := int(ref.Start), int(ref.Start)+ref.Tokens; ref.Whole() && !ref.Lossy && end <= len(p.prompt.tokens) {
			learnPage(r.runs, ref.Key, &pagefile.Page{
				Parent: ref.Parent, Start: ref.Start, Tokens: p.prompt.tokens[start:end],
				Media: pagefile.MediaWithin(p.prompt.media, start, ref.Tokens),
			})
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
	r.why.restoredLocked(r.seq, &r.result, r.limit, &r.prompt, r.caches.divisible(), r.slots.of)
	if r.result.Tokens > 0 {
		r.stats.Restores++
		r.stats.RestoredTokens += int64(r.result.Tokens)
		r.stats.RestoredBytes += r.result.Bytes
		r.stats.ShiftedTokens += int64(r.result.Shifted)
		r.stats.LossyTokens += int64(r.result.Lossy)
	}
}
