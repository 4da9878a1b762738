package why

import "github.com/kvtier/kvtier/telemetry"

const (
	// gramTokens is the number of equal tokens in a row by which text behind a difference is recognized.
	gramTokens = 16

	// reachTokens bounds the text behind a difference in which such tokens are looked for.
	reachTokens = 8192

	// wordsBefore are the tokens of Words before the difference.
	wordsBefore = 8
)

// Similar is the result of comparing a prompt with the prompts before it.
type Similar struct {
	// Prefix counts the leading tokens that the prompt has in common with the most similar of
	// the recent prompts, and Prompts the prompts it was compared with.
	Prefix, Prompts int
	// Whole: that prompt ended there, or this one does.
	Whole bool
	// Alike: the two are alike enough to say that one was changed: they share a page, or half of
	// the shorter one, or text behind the difference (Back).
	Alike, Back bool
	// Image: an image or a sound differs at Prefix, and no token does.
	Image bool
	// Words are the tokens around Prefix; nil for a private prompt.
	Words *telemetry.Words

	// Seen: rows of the first token that was not restored were computed before, in this process.
	// Fate tells where they went, as far as known.
	Seen bool
	Fate Fate
	// Underway: a request that has not ended has that token as well.
	Underway bool
	// Private counts the leading tokens that a private request had, if that is more than were
	// restored; else 0.
	Private int
}

// Compare compares prompt number id, of which the first `held` tokens were not computed, with
// the prompts before it. page is the number of tokens of a page. The caller compares prompts in
// the order of their numbers; Compare takes some milliseconds where prompts are long.
func (r *Recents) Compare(id uint64, text Text, private bool, held, page int) Similar {
	var s Similar
	if r == nil {
		return s
	}
	s.Private = r.private.covers(text, held)
	recents := r.before(id, text.Of)
	s.Prompts = len(recents)
	best := -1
	for i := range recents {
		e := &recents[i]
		n := e.text.shared(text)
		if best < 0 || n > s.Prefix {
			best, s.Prefix = i, n
		}
		if n <= held {
			continue
		}
		switch {
		case !e.done: // with other text soon behind, it computes another page
			s.Underway = s.Underway || n-held >= page || n == min(len(e.text.Tokens), len(text.Tokens))
		case e.reach > held && !s.Seen:
			s.Seen = true
			if e.fate.Why != FateStored && e.fate.Unstored <= held {
				s.Fate = e.fate
			}
		}
	}
	if best >= 0 {
		s.compareWith(recents[best].text, text, private, page)
	}
	if !private {
		r.busters.observe(recents, text, held)
	}
	return s
}

func (s *Similar) compareWith(was, is Text, private bool, page int) {
	at, shorter := s.Prefix, min(len(was.Tokens), len(is.Tokens))
	if s.Whole = at == shorter; s.Whole {
		s.Alike = at > 0
		return
	}
	if was.Tokens[at] == is.Tokens[at] { // only media can differ
		s.Image = true
	} else if a, ok := was.mediaAt(at); ok {
		b, there := is.mediaAt(at)
		s.Image = there && a != b
	}
	s.Back = comesBack(was.Tokens[at:], is.Tokens[at:])
	s.Alike = s.Back || at >= page || 2*at >= shorter
	if !private && !s.Image {
		begin := max(0, at-wordsBefore)
		s.Words = &telemetry.Words{Begin: begin, Was: cut(was.Tokens, begin), Is: cut(is.Tokens, begin)}
	}
}

// comesBack reports whether text behind a difference is, somewhere in reachTokens, the same.
func comesBack(was, is []int32) bool {
	was, is = was[:min(len(was), reachTokens)], is[:min(len(is), reachTokens)]
	known := make(map[[gramTokens]int32]bool, len(was))
	for i := 1; i+gramTokens <= len(was); i++ {
		known[[gramTokens]int32(was[i:i+gramTokens])] = true
	}
	for i := 1; i+gramTokens <= len(is); i++ {
		if known[[gramTokens]int32(is[i:i+gramTokens])] {
			return true
		}
	}
	return false
}
