package llamatier

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Request is a request as far as the Tier must know it.
type Request struct {
	Tokens  []int32            // the prompt, up to the first image or sound
	Parts   []Part             // the first image or sound, and all behind it
	Rest    []int32            // stands for those of the parts of which the Tier knows nothing; nil without
	Slot    int                // that the request asks for, -1 for any
	Tenant  Tenant             // whose request it is
	Loose   bool               // the engine drops the number of a slot
	Private bool               // rows are neither restored nor stored
	AtOnce  bool               // the prompt is computed in one step; see Turn.Staged
	Cancel  context.CancelFunc // gives the request up
	Stage   Listener           // hears of the first steps of a prompt that is computed in several

	// Others are the other members of a request that passes when the engine has computed its prompt (Tier.Prefill).
	// The engine may refuse it because of them, and does so before it computes the prompt.
	Others map[string]json.RawMessage

	beside bool                // the engine may get the request while it restores the slot; it tells the time of the prompt
	known  int                 // of Parts, whose tokens are among Tokens
	media  []llamastate.Medium // of these
}

// parts are the parts of which nothing is known.
func (r *Request) parts() []Part { return r.Parts[r.known:] }

// anywhere reports whether the engine chooses the slot.
func (r *Request) anywhere() bool { return r.Loose || r.Others != nil }

// textual reports whether a prompt has neither image nor sound.
func (r *Request) textual() bool { return r.Rest == nil && r.media == nil }

// Errors of Begin.
var (
	// ErrClosed reports a request that began after Flush.
	ErrClosed = errors.New("llamatier: the tier is closed")

	// ErrTaken reports that requests of Unknown run, and that the engine runs one in the slot that another
	// request would get, and has a free slot, or that the engine would choose a slot for this request, too.
	ErrTaken = errors.New("llamatier: the engine has given the slot to another request")
)

// Turn is a request that has a slot.
type Turn struct {
	// Staged is the account of the first parts of the prompt, if some were computed before the
	// request: the engine counts their tokens as cached.
	Staged *Answer

	// TooLong says that the prompt has no room in the slot: the engine refuses it at once.
	TooLong bool

	to      *accounting // that is told of the end
	s       *slot
	request Request
	counted int // at most Engine.Generated before the request

	served Served
	room   int     // of the slot, in tokens, for a turn of Resume
	search *search // nil unless the engine chooses the slot
	loads  func()  // waits until the slot is restored, and notes it; nil if that is over

	began    time.Time
	held     int // tokens of the prompt that the slot held before the restore
	restored restored
	asked    *engine.Inquiry // nil without Options.Recents
}

// Slot is the number of the slot, for the request's id_slot.
func (u *Turn) Slot() int { return u.served.Slot }

// Reads reports whether an answer is one to the request's tokens, by their number.
func (u *Turn) Reads(answer *Answer) bool {
	return u.request.Rest != nil || answer.Cached+answer.Processed == len(u.request.Tokens)
}

// Tokens is the number of the request's tokens, as far as they are known.
func (u *Turn) Tokens() int { return len(u.request.Tokens) }

// await waits until the slot is restored.
func (u *Turn) await() {
	if u.loads != nil {
		u.loads()
		u.loads = nil
	}
}

// End ends a request. answer is nil unless the engine was heard to the end. The slot is saved
// some time later, unless another request takes it before.
func (u *Turn) End(answer *Answer) {
	u.await()
	if !u.search.end(answer != nil) {
		u.lost(answer != nil)
		return
	}
	u.record(answer)
	u.computed(len(u.request.Tokens), answer)
	if answer != nil {
		u.to.asker.count()
	} else {
		u.to.asker.doubt() // the engine ends it later
	}
	u.free(answer)
}

// record notes the account of a request.
func (u *Turn) record(answer *Answer) {
	p := u.account(answer)
	u.restored.saved = p.Saved
	u.to.why.Record(context.Background(), u.asked, p, nil)
	u.to.why.Done(u.asked, u.request.asked(), why.Fate{})
}

// free makes the slot of a request free, which has ended.
func (u *Turn) free(answer *Answer) {
	u.to.table.end(u.s, u.s.describe(answer, u.restored, u.to.pageTokens))
}

// lost ends a request that may have run in any slot.
func (u *Turn) lost(heard bool) {
	u.search.log.Debug("kv tier: llama-server may have run a request in any slot", "expected", u.s.id)
	u.to.why.Done(u.asked, why.Text{}, why.Fate{})
	u.to.asker.doubt()
	u.to.table.endUnknown(true, heard)
	u.to.table.drop(u.s)
}

// computed notes that the engine has computed the first tokens of a prompt.
func (u *Turn) computed(tokens int, answer *Answer) {
	if answer != nil && answer.Took > 0 && u.request.textual() && tokens > 0 { // an image is not computed as tokens are
		u.to.rates.Computed(answer.Processed, float64(answer.Cached)+float64(answer.Processed-1)/2, answer.Took)
	}
	if answer == nil && u.search == nil { // a search has seen it begin
		u.to.table.gaveUp(u.s)
	}
	part := u.request
	part.Tokens = part.Tokens[:tokens]
	u.s.compute(part, u.counted, answer, u.to.shifts)
}

// Drop ends a request that the engine has not got, or has refused because the prompt is TooLong.
// It takes the place of End.
func (u *Turn) Drop() {
	u.await()
	if !u.search.end(true) {
		u.to.table.endUnknown(false, true)
	}
	u.to.why.Done(u.asked, why.Text{}, why.Fate{}) // the engine has computed nothing
	u.to.table.drop(u.s)
}

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
func (t *Tier) Resume(ctx context.Context, last Served, r Request) *Turn {
	if r.Loose = r.Loose && len(t.table.slots) > 1; !r.Loose {
		return t.resume(ctx, last, r)
	}
	if !t.searches(r) {
		return nil
	}
	if !t.table.passAtOnce(r.Tenant) {
		return nil
	}
	select {
	case t.table.searching <- struct{}{}:
	default:
		t.table.leave()
		return nil // another one is on its way
	}
	u, _ := t.searched(ctx, func() (*Turn, error) {
		if u := t.resume(ctx, last, r); u != nil {
			return u, nil
		}
		return nil, ErrTaken
	})
	return u
}

func (t *Tier) resume(ctx context.Context, last Served, r Request) *Turn {
	if t.restorer.form.shape.HasEnd() || t.obstacles.off.Load() {
		return nil // such a slot cannot go back to where the prompts part, or nothing is stored
	}
	s := t.table.takeAfter(last, r.Tenant)
	if s == nil {
		return nil
	}
	prompt := len(s.tokens)
	if prompt < restoreMin || s.rest != nil || s.unheard() || t.table.spoiled(s) || t.restorer.held(ctx, s, s.tokens) < prompt {
		t.table.giveBack(s)
		return nil
	}
	u := &Turn{to: t.accounting, s: s, began: time.Now(), room: t.context, held: prompt, counted: t.asker.least()}
	u.served = t.table.begin(s, r)
	return u
}

// takeAfter makes the slot of a tenant's request busy, if it is free, no other request has begun in it since and
// none runs of which nothing is known. Otherwise it returns nil.
func (t *table) takeAfter(last Served, of Tenant) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[last.Slot]
	if t.closed || t.unknown > 0 || s.busy || s.acting || s.begun != last.begun || s.tenant != of || t.shutsOutLocked(of) {
		return nil
	}
	return s.takeLocked(of)
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
