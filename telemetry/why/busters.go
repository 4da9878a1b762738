package why

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// spanMax bounds a span that changes, in tokens of each prompt.
	spanMax = 64

	// behindMin is the number of equal tokens behind a span that make two prompts similar. A
	// chat's own marks around a message are fewer.
	behindMin = 32

	// spansMax bounds the spans that two prompts are compared by.
	spansMax = telemetry.BustersMax

	// nearTokens is the distance at which two spans are one place: a clock's minutes and its hours.
	nearTokens = 16

	// busterMin is the number of prompts in a row from which a place is reported.
	busterMin = 2

	// bustersMax bounds the places that are watched.
	bustersMax = 32
)

// span is a part that differs between two prompts, [begin, end) in the later one, and the number of
// tokens behind it that are equal.
type span struct {
	begin, end, wasBegin int
	same                 int
}

// spans aligns two prompts: they are equal up to the first span, then behind it, and so on, until
// a part that differs is longer than spanMax. The last span has equal tokens behind it.
func spans(was, is []int32) []span {
	var found []span
	i, j := 0, 0 // of is, of was
	for len(found) < spansMax {
		same := pagefile.Shared(is[i:], was[j:])
		i, j = i+same, j+same
		if len(found) > 0 {
			found[len(found)-1].same = same
		}
		di, dj, ok := align(is[i:], was[j:])
		if !ok {
			break
		}
		found = append(found, span{begin: i, end: i + di, wasBegin: j})
		i, j = i+di, j+dj
	}
	if n := len(found); n == spansMax {
		found[n-1].same = pagefile.Shared(is[i:], was[j:])
	}
	return found
}

// align returns the shortest beginnings of two texts, of at most spanMax tokens each, behind which
// behindMin tokens are equal.
func align(is, was []int32) (i, j int, ok bool) {
	for sum := 1; sum <= 2*spanMax; sum++ {
		for i := max(0, sum-spanMax); i <= min(sum, spanMax); i++ {
			j := sum - i
			if i+behindMin > len(is) || j+behindMin > len(was) || is[i] != was[j] {
				continue
			}
			if slices.Equal(is[i:i+behindMin], was[j:j+behindMin]) {
				return i, j, true
			}
		}
	}
	return 0, 0, false
}

type busters struct {
	mu     sync.Mutex
	places []telemetry.Buster
}

// observe compares a prompt, whose first held tokens were not computed, with the one before it to
// which it is most similar. Prompts without such a one leave everything as it is.
func (b *busters) observe(before []recent, text Text, held int) {
	var best []span
	var was []int32
	most, reach := 0, 0
	for _, e := range before {
		if e.text.shown() || text.shown() {
			continue // equal tokens around other images are not equal text
		}
		found := spans(e.text.Tokens, text.Tokens)
		same, end := pagefile.Shared(e.text.Tokens, text.Tokens), 0
		for _, s := range found {
			same, end = same+s.same, s.end+s.same
		}
		if same > most {
			best, was, most, reach = found, e.text.Tokens, same, max(same, end)
		}
	}
	if most < behindMin {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places = slices.DeleteFunc(b.places, func(p telemetry.Buster) bool { // the row ends where nothing changed
		return p.Begin < reach && isIn(p, text.Tokens) && !slices.ContainsFunc(best, func(s span) bool { return near(s, p) })
	})
	for _, s := range best {
		b.changedLocked(s, was, text.Tokens, held)
	}
	slices.SortStableFunc(b.places, func(x, y telemetry.Buster) int { return cmp.Compare(y.Lost, x.Lost) })
	b.places = b.places[:min(len(b.places), bustersMax)]
}

// isIn reports whether the text right before a place is also in a prompt, at most nearTokens away.
// Another chat, which lacks it, does not end the row.
func isIn(p telemetry.Buster, tokens []int32) bool {
	w := p.Words
	n := min(p.Begin-w.Begin, len(w.Is))
	for at := max(0, w.Begin-nearTokens); n > 0 && at <= w.Begin+nearTokens; at++ {
		if at+n <= len(tokens) && slices.Equal(w.Is[:n], tokens[at:at+n]) {
			return true
		}
	}
	return n <= 0
}

func near(s span, p telemetry.Buster) bool {
	return s.begin <= p.End+nearTokens && p.Begin <= s.end+nearTokens
}

// changedLocked notes that a place has changed again, or for the first time.
func (b *busters) changedLocked(s span, was, is []int32, held int) {
	i := slices.IndexFunc(b.places, func(p telemetry.Buster) bool { return near(s, p) && isIn(p, is) })
	if i < 0 {
		i = len(b.places)
		b.places = append(b.places, telemetry.Buster{Begin: s.begin, End: s.end})
	}
	p := &b.places[i]
	if p.Begin > s.end || p.End < s.begin || p.End-p.Begin > 2*spanMax { // moved on by a few tokens
		p.Begin, p.End = s.begin, s.end
	}
	p.Begin, p.End = min(p.Begin, s.begin), max(p.End, s.end)
	p.Prompts++
	p.Lost += max(0, s.end+s.same-max(s.end, held))
	p.Changed = time.Now()
	begin := max(0, p.Begin-wordsBefore)
	p.Words = &telemetry.Words{Begin: begin, Was: cut(was, max(0, s.wasBegin-(s.begin-begin))), Is: cut(is, begin)}
}

// cut copies at most WordsMax tokens from a position on.
func cut(tokens []int32, begin int) []int32 {
	return slices.Clone(tokens[min(begin, len(tokens)):min(len(tokens), begin+telemetry.WordsMax)])
}

// Busters returns the places that changed in busterMin prompts in a row or more, those that cost most first.
func (r *Recents) Busters() []telemetry.Buster {
	if r == nil {
		return nil
	}
	b := &r.busters
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []telemetry.Buster
	for _, p := range b.places {
		if p.Prompts >= busterMin && len(found) < telemetry.BustersMax {
			found = append(found, p)
		}
	}
	return found
}
