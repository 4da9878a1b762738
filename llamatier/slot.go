package llamatier

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry"
)

// slot is one of the engine's slots. table.mu guards it. The goroutine that made the slot busy owns its
// sequence, and needs no lock for it.
type slot struct {
	id   int
	busy bool      // a request or a save uses it
	used time.Time // end of the last request

	begun uint64 // requests in it

	tenant Tenant // whose rows these are, also in a slot that was emptied for it; the owner of a busy slot changes it
	wants  Tenant // whose request has made it busy

	cancel context.CancelFunc       // gives up the request that runs in it; nil without
	loose  bool                     // Request.Loose of that one
	idle   interface{ Stop() bool } // saves the slot; nil: nothing to save

	gone time.Time // when a request in it was given up that the engine may not have begun; zero long after
	late bool      // such a request may have begun since the current one

	acting  bool // llama-server holds an action back
	unknown bool // a request of which nothing is known, and which is over, may have used the slot

	seen telemetry.Slot // as Slots shows it

	refused time.Time // since when it could not be saved because requests of others run in it; zero otherwise

	sequence
}

// lateMost is the time for which a request that was given up may begin in its slot, also after the request
// behind it: llama-server reads it to the end.
const lateMost = 10 * time.Second

// mayBegin reports whether a request that was given up may begin in the slot.
func (s *slot) mayBegin() bool {
	return !s.gone.IsZero() && (s.unheard() || time.Since(s.gone) < lateMost)
}

// sequence describes the tokens and rows in a slot, as far as they are known.
type sequence struct {
	tokens      []int32  // that the slot holds at least: the last prompt
	rest        []int32  // Request.Rest of the last prompt
	parts       []Part   // those for which it stands
	known       int      // the parts before these
	prompt      int      // number of tokens of the last prompt
	ends        []int    // tokens before each end that was stored, in order
	loaded      int      // tokens that were restored last: the engine cannot go back before them
	checkpoints int64    // bytes of the checkpoints in the last file of the slot
	expected    restored // by Expect, until a request uses it
	dirty       bool     // tokens were computed since the slot was saved
	tails       bool     // tokens were computed since tails were stored
	private     bool     // the last request must not be stored
	broken      bool     // rows from before the last request must not be stored
	lossy       bool     // broken, because some of these rows came from lossy pages

	judged  bool     // it is known whether the last answer filled the slot
	last    *Answer  // of the last request; nil if the engine was not heard to the end
	pending *unheard // nil if all answers that are not judged were heard to the end
}

// unheard are the answers in a slot from the first one on of which the engine was not heard to the
// end, and which are not judged yet.
type unheard struct {
	counted int  // at most Engine.Generated before them
	prompt  int  // number of tokens of the longest of their prompts
	media   bool // a prompt has an image or a sound, of which nobody counts the tokens
}

// unheard reports whether the client of the last request may have gone away: the engine notices
// some time later.
func (s *sequence) unheard() bool { return !s.judged && s.last == nil }

// ended returns the number of tokens before the last end that was stored; 0 without one.
func (s *sequence) ended() int {
	if len(s.ends) == 0 {
		return 0
	}
	return s.ends[len(s.ends)-1]
}

// rewound notes that the engine is about to keep no more than a number of tokens.
func (s *sequence) rewound(held int) {
	for s.ended() > held {
		s.ends = s.ends[:len(s.ends)-1]
	}
}

// keeps notes that a prompt is about to replace what the slot holds, and returns how many tokens of the prompt
// the engine may keep. A slot that goes on only at its ends begins anew in front of the first one, and the engine
// computes at least one token.
func (s *sequence) keeps(tokens []int32, ends bool) (held int) {
	held = commonPrefix(s.tokens, tokens)
	s.rewound(held)
	if ends && min(held, len(tokens)-1) < min(s.loaded, len(s.tokens)) {
		held, s.loaded, s.tokens = 0, 0, nil
	}
	return held
}

func (s *sequence) emptied() { *s = sequence{last: s.last, judged: true} }

// storable reports whether there are rows that are not stored and that a save can store at once.
func (s *sequence) storable() bool {
	known := s.last != nil && s.last.Cached == 0 || !s.broken // see judge.rows
	return (s.dirty || s.tails) && known && !s.private && !s.unheard()
}

// compute notes that the engine has computed a prompt, or its first part. counted is at most
// Engine.Generated before; answer is nil if the engine was not heard to the end. The engine shifts the
// context of a slot with a number of tokens; 0: never.
func (s *sequence) compute(r Request, counted int, answer *Answer, shifts int) {
	s.noteAnswer(r, counted, answer, shifts)
	s.expected = restored{}
	s.tokens, s.rest, s.prompt = r.Tokens, r.Rest, len(r.Tokens)
	s.parts, s.known = r.parts(), r.known
	s.dirty, s.tails = true, true
	s.broken, s.private = s.broken || s.private, r.Private
}

// noteAnswer notes how much the engine has computed. An answer before, of which it is not known whether
// it filled the slot, is judged together with this one: the count from before that answer bounds both.
func (s *sequence) noteAnswer(r Request, counted int, answer *Answer, shifts int) {
	if !s.judged && s.last != nil && shifts > 0 && s.last.seen()+1 >= shifts {
		s.broken = true
	}
	if answer == nil && s.pending == nil {
		s.pending = &unheard{counted: counted}
	}
	if p := s.pending; p != nil {
		prompt := len(r.Tokens)
		if answer != nil {
			prompt = answer.Cached + answer.Processed // tokens of images count
		}
		p.prompt = max(p.prompt, prompt)
		p.media = p.media || answer == nil && r.Rest != nil
	}
	if answer != nil && answer.Cached == 0 {
		s.checkpoints = 0 // those of another conversation are gone
	}
	s.last, s.judged = answer, false
}

// learn has an album learn what the engine has made of the last prompt's parts, from the slot that was
// saved, which is cut off before those that stay unknown.
func (s *slot) learn(a *album, state *llamastate.File) {
	first := len(s.tokens)
	if s.tenant == (Tenant{}) && s.last != nil && len(s.parts) > 0 && !state.Cut {
		prompt := s.last.Cached + s.last.Processed
		if a.learn(state, first, s.known, s.parts, prompt) {
			s.rest, s.parts, s.prompt = nil, nil, prompt
			return
		}
	}
	if i := slices.IndexFunc(state.Media, func(m llamastate.Medium) bool { return m.Start >= first }); i >= 0 {
		state.CutAt(i)
	}
}

// fileSize is about the size of the file into which a slot with a number of tokens is saved. It has
// checkpoints as well, which may be more than all rows: about those of the last save.
func (s *sequence) fileSize(f form, tokens int) int64 { return f.fileSize(tokens) + s.checkpoints }

// shared is the number of tokens that a prompt shares with the last one of its tenant. Images and sounds count as
// tokens.
func (s *slot) shared(r Request) int {
	if s.tenant != r.Tenant {
		return 0
	}
	n := commonPrefix(s.tokens, r.Tokens)
	if n == len(r.Tokens) {
		n += commonPrefix(s.rest, r.Rest)
	}
	return n
}

// commonPrefix returns the number of tokens that two sequences share at their beginning.
func commonPrefix(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
