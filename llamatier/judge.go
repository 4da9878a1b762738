package llamatier

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/llamastate"
)

// judge decides whether the rows of a saved slot may be stored.
type judge struct {
	window  int // Options.Window
	table   *table
	asker   *asker
	noShift bool // Options.NoShift
	drafts  bool // Options.Drafts

	mistaken func() // Options.Mistaken
}

// draftMax is more than the tokens that are usually drafted at once: the most of llama-server's
// defaults, which draft-… have at 3 and ngram-mod at 64. Drafts that were right stay in a slot, although
// the answer ends before them.
const draftMax = 64

// unsaidMax is more than the tokens behind a prompt that may be missing in what its request was said to have, as
// those that open an answer may: without an account of the answer nobody counts them.
const unsaidMax = 64

// errUnknownRuns reports a slot that a request of which nothing is known may be using.
var errUnknownRuns = because(CauseBusy, "a request of which nothing is known may run in it")

// rows returns an error if the rows of a busy slot, which the engine has just saved, must not be stored.
func (j *judge) rows(ctx context.Context, s *slot, p Slot) error {
	if j.table.unknownRuns() {
		return errUnknownRuns // it began after the save, or may have run before
	}
	if j.table.breakUnknown(s) {
		s.last, s.pending = nil, nil
	}
	if s.last != nil && s.last.Cached == 0 && p.Held >= s.last.seen()-1 {
		s.broken, s.lossy, s.pending = false, false, nil // all rows are those of the last request
	}
	shifted, err := j.shifted(ctx, &s.sequence, p)
	if err != nil {
		return err // the next save asks again
	}
	s.judged, s.pending = true, nil
	s.broken = s.broken || shifted
	switch {
	case shifted:
		return because(CauseShifted, "its context may have been shifted")
	case s.broken || s.private:
		return because(CauseUntrusted, "it holds rows of a shifted context, of lossy pages, or of a request that is not stored")
	}
	return nil
}

// shifted reports whether the context of a slot may have been shifted since the slot was judged. An
// error says that this is not known yet.
func (j *judge) shifted(ctx context.Context, s *sequence, p Slot) (bool, error) {
	seen := 0 // at least the number of tokens of any prompt and its answer
	switch u := s.pending; {
	case s.last != nil && p.Held < s.last.seen()-1:
		return true, nil
	case j.noShift:
		return false, nil
	case u == nil && s.last != nil:
		seen = s.last.seen()
	case u == nil:
		return false, nil
	case u.media:
		return true, nil
	default:
		_, now, err := j.asker.generated(ctx)
		if errors.Is(err, errUncounted) {
			return true, nil
		}
		if err != nil {
			return false, because(CauseUnanswered, "find out the length of its last answer: %w", err)
		}
		seen = u.prompt + unsaidMax + now - u.counted
	}
	return seen+1 >= p.Context, nil
}

// file returns an error if the file of a saved slot does not have the rows that it must have.
func (j *judge) file(s *sequence, p Slot, state *llamastate.File) error {
	held := len(state.Tokens)
	if !state.Cut && held != p.Held {
		return because(CauseUntrusted, "it held %d tokens when it was saved, and holds %d now", held, p.Held)
	}
	beyond := 0
	if j.drafts {
		beyond = draftMax
	}
	if err := s.foreign(state, beyond); err != nil {
		j.mistaken()
		return err
	}
	if want := min(j.window, held); !state.Cut && state.WindowRows() != want {
		return because(CauseFormat, "its window keeps %d positions of %d, want %d", state.WindowRows(), held, want)
	}
	return nil
}

// foreign returns an error if a slot that was saved holds another prompt than the last one,
// or more than the last request's account and the engine's drafts behind it say. llama-server may begin a request whose client
// went away while the request was being read, also after the request behind it.
func (s *sequence) foreign(state *llamastate.File, beyond int) error {
	n, held := commonPrefix(s.tokens, state.Tokens), len(state.Tokens)
	if n == min(len(s.tokens), held) && (s.last == nil || state.Cut || len(s.parts) > 0 || held <= s.last.seen()+beyond) {
		return nil
	}
	s.broken = true
	return because(CauseUntrusted, "it holds %d tokens, and shares %d with the last prompt of %d: another request ran in it", held, n, len(s.tokens))
}
