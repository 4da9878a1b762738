package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// accounting is told of the end of each request.
type accounting struct {
	table      *table
	counter    *counter
	why        *inquirer
	rates      *rates.Rates
	pageTokens int // of a page
	shifts     int // tokens in a slot at which its context is shifted; 0: never
}

// restored counts the tokens that a restore has put into a slot.
type restored struct {
	tokens             int // that the slot did not hold before
	ram, local, remote int // these, by tier
	lossy              int // these, from the first lossy page on
	bytes              int64
	took               time.Duration
	saved              time.Duration // known when the request has ended
}

// countRestored counts the pages of a plan behind the tokens that a slot held.
func countRestored(p *plan, held int, took time.Duration) restored {
	r := restored{tokens: max(0, len(p.tokens)-held), took: took}
	r.lossy = min(r.tokens, p.lossy())
	for _, ref := range p.refs {
		n := min(int(ref.Start)+ref.Tokens, len(p.tokens)) - max(int(ref.Start), held)
		if n <= 0 {
			continue
		}
		r.bytes += ref.Bytes
		switch ref.Tier {
		case tier.RAM:
			r.ram += n
		case tier.Remote:
			r.remote += n
		default:
			r.local += n
		}
	}
	return r
}

// account is the account of a request's prompt. Without the engine's answer, the tokens that the
// slot did not hold, and that were not restored, count as computed, although the request may have
// ended before.
func (u *Turn) account(answer *Answer) telemetry.Prompt {
	p := telemetry.Prompt{
		At: u.began, ID: u.s.id, Private: u.private,
		RAM: u.restored.ram, Local: u.restored.local, Remote: u.restored.remote,
		Restore: u.restored.took,
	}
	cached, computed := u.held+u.restored.tokens, 0
	if answer == nil {
		p.Tokens = len(u.tokens)
		computed = max(0, p.Tokens-cached)
	} else {
		cached, computed = answer.Cached, answer.Processed
		p.Took = u.restored.took + answer.Took
		if u.Staged != nil {
			cached, computed = u.Staged.Cached, computed+u.Staged.Processed
			p.Took += u.Staged.Took
		}
		p.Tokens = cached + computed
	}
	p.Computed = computed
	p.Slot = p.Tokens - computed - u.restored.tokens
	if p.Slot < 0 { // the engine computed some of the restored tokens again
		p.RAM, p.Local, p.Remote, p.Slot = shrink(p.RAM, p.Local, p.Remote, -p.Slot)
	}
	p.Lossy = min(u.restored.lossy, p.RAM+p.Local+p.Remote)
	switch {
	case u.restored.tokens > 0:
		p.Saved = u.to.rates.Saved(p.Slot, p.Tokens, p.Took)
	case answer != nil && p.Slot == 0 && u.rest == nil: // an image is not computed as tokens are
		u.to.rates.Whole(p.Tokens, p.Took)
	}
	return p
}

// shrink takes tokens away from the tiers, from the slowest first.
func shrink(ram, local, remote, n int) (int, int, int, int) {
	for _, of := range []*int{&remote, &local, &ram} {
		less := min(*of, n)
		*of, n = *of-less, n-less
	}
	return ram, local, remote, 0
}

// describe describes a slot that its request leaves, for people.
func (s *slot) describe(answer *Answer, r restored, pageTokens int) telemetry.Slot {
	tokens := len(s.tokens)
	if answer != nil {
		tokens = answer.seen()
	}
	v := s.seen
	v.Tokens, v.Hot, v.Shifted = tokens, tokens/pageTokens, s.broken
	v.Lossy = s.lossy
	if r.tokens > 0 {
		v.LastRestore, v.Restored = time.Now(), r.tokens
		v.Saved += r.saved
	}
	return v
}
