package llamatier

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Turn is a request that has a slot.
type Turn struct {
	// Restored is the number of tokens that were put into the slot for the request.
	Restored int

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
	room   int // of the slot, in tokens, for a turn of Resume

	began    time.Time
	held     int // tokens of the prompt that the slot held before the restore
	restored restored
	asked    *engine.Inquiry // nil without Options.Recents
}

// Slot is the number of the slot, for the request's id_slot.
func (u *Turn) Slot() int { return u.s.id }

// Reads reports whether an answer is one to the request's tokens, by their number.
func (u *Turn) Reads(answer *Answer) bool {
	return u.request.Rest != nil || answer.Cached+answer.Processed == len(u.request.Tokens)
}

// Tokens is the number of the request's tokens, as far as they are known.
func (u *Turn) Tokens() int { return len(u.request.Tokens) }

// End ends a request. answer is nil unless the engine was heard to the end. The slot is saved
// some time later, unless another request takes it before.
func (u *Turn) End(answer *Answer) {
	to, s := u.to, u.s
	p := u.account(answer)
	u.restored.saved = p.Saved
	to.why.Record(context.Background(), u.asked, p, nil)
	to.why.Done(u.asked, why.Text{Tokens: u.request.Tokens}, why.Fate{})
	u.computed(len(u.request.Tokens), answer)
	if ended := to.counter.generating(); answer != nil {
		to.counter.askAhead(ended)
	}
	to.table.end(s, s.describe(answer, u.restored, to.pageTokens))
}

// computed notes that the engine has computed the first tokens of a prompt.
func (u *Turn) computed(tokens int, answer *Answer) {
	if answer != nil && answer.Took > 0 && u.request.textual() && tokens > 0 { // an image is not computed as tokens are
		u.to.rates.Computed(answer.Processed, float64(answer.Cached)+float64(answer.Processed-1)/2, answer.Took)
	}
	u.s.compute(step{tokens: u.request.Tokens[:tokens], rest: u.request.Rest, parts: u.request.parts(), known: u.request.known, private: u.request.Private, counted: u.counted, answer: answer}, u.to.shifts)
}

// Drop ends a request that the engine has not got, or has refused because the prompt is TooLong.
// It takes the place of End.
func (u *Turn) Drop() {
	u.to.why.Done(u.asked, why.Text{}, why.Fate{}) // the engine has computed nothing
	u.to.table.drop(u.s)
}
