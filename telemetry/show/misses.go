package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Miss is a prompt that computed more than it had to.
type Miss struct {
	Time      time.Time `json:"time"`
	Model     string    `json:"model"`
	Weights   string    `json:"weights"`
	Namespace string    `json:"namespace,omitempty"`
	Engine    string    `json:"engine"`
	PID       int       `json:"pid"`
	Slot      int       `json:"slot"`
	Private   bool      `json:"private"`

	Tokens   int `json:"tokens"`
	InSlot   int `json:"slot_tokens"`
	Restored int `json:"restored_tokens"` // from memory, disk and share, and reused at another position
	Computed int `json:"computed_tokens"`

	Cause    telemetry.Cause `json:"cause"`
	Position int             `json:"position"` // of the first token that was computed, from 0
	Because  string          `json:"because"`
	Remedy   string          `json:"remedy"`
	Detail   string          `json:"detail,omitempty"`
	When     *time.Time      `json:"evicted,omitempty"`
	From     string          `json:"evicted_from,omitempty"`

	Words *telemetry.Words `json:"-"` // nil where they are not known here
}

// Misses lists the prompts that missed and that keep accepts, the newest first, at most n.
func Misses(s telemetry.State, name Name, now time.Time, n int, keep func(telemetry.StatePrompt) bool) []Miss {
	list := []Miss{}
	for _, p := range slices.Backward(s.Prompts) {
		if p.Miss == nil || !keep(p) {
			continue
		}
		if len(list) == n {
			break
		}
		list = append(list, Miss{
			Time: p.At, Model: name(p.Weights, ownName(s, p.Weights)), Weights: p.Weights, Namespace: p.Namespace,
			Engine: p.Process.Engine, PID: p.Process.PID, Slot: p.ID, Private: p.Private,
			Tokens: p.Tokens, InSlot: p.Prompt.Slot, Restored: p.RAM + p.Local + p.Remote + p.Shifted, Computed: p.Computed,
			Cause: p.Miss.Cause, Position: p.Miss.At, Because: Because(*p.Miss, now), Remedy: Remedy(*p.Miss),
			Detail: p.Miss.Detail, When: Known(p.Miss.When), From: p.Miss.From, Words: p.Miss.Words,
		})
	}
	return list
}

// ownName is the name that a process with the weights gave them.
func ownName(s telemetry.State, weights string) string {
	for _, m := range s.Models {
		if m.Model.Weights == weights && m.Model.Name != "" {
			return m.Model.Name
		}
	}
	return ""
}

// Buster is a place that changes in every prompt.
type Buster struct {
	Model     string `json:"model"`
	Weights   string `json:"weights"`
	Namespace string `json:"namespace,omitempty"`
	Begin     int    `json:"begin"` // positions [Begin, End) of the latest prompt, from 0
	End       int    `json:"end"`
	Prompts   int    `json:"prompts"`     // in a row
	Lost      int    `json:"lost_tokens"` // behind it: computed in them, although they were the same

	Words *telemetry.Words `json:"-"` // nil where they are not known here
}

// Changing names the positions [begin, end) as the subject of a sentence, with its verb.
func Changing(begin, end int) string {
	if end-begin <= 1 {
		return "Token " + Count(int64(begin)) + " changes"
	}
	return "Tokens " + Count(int64(begin)) + " to " + Count(int64(end)-1) + " change"
}

// BusterAdvice is the remedy for a Buster.
const BusterAdvice = "Move this text behind all text that stays the same, best into the last message, or leave it out."

// Busters lists the places that change in every prompt, the one that costs the most first.
func Busters(s telemetry.State, name Name, keep func(weights string) bool) []Buster {
	list := []Buster{}
	for _, p := range s.Processes {
		for _, b := range p.Busters {
			if keep(p.Model.Weights) {
				list = append(list, Buster{
					Model: name(p.Model.Weights, p.Model.Name), Weights: p.Model.Weights, Namespace: p.Model.Namespace,
					Begin: b.Begin, End: b.End, Prompts: b.Prompts, Lost: b.Lost, Words: b.Words,
				})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Buster) int { return cmp.Compare(b.Lost, a.Lost) })
	return list
}

// Parting is the place at which two prompts part: the tokens before, which both have, the tokens that differ,
// and the tokens of each behind these. Where the prompts do not meet again, all that follows differs.
type Parting struct {
	Before            []int32
	Was, Is           []int32
	AfterWas, AfterIs []int32
}

// meetTokens is the number of tokens in a row that have to be the same for two prompts to have
// met again: single tokens, such as a colon, are alike by chance.
const meetTokens = 3

// Part finds the place in words. A change is kept as short as possible.
func Part(w telemetry.Words) Parting {
	n := 0
	for n < min(len(w.Was), len(w.Is)) && w.Was[n] == w.Is[n] {
		n++
	}
	was, is := w.Was[n:], w.Is[n:]
	p := Parting{Before: w.Is[:n], Was: was, Is: is}
	for sum := range len(was) + len(is) {
		for i := max(0, sum-len(is)); i <= min(sum, len(was)); i++ {
			if j := sum - i; meet(was[i:], is[j:]) {
				p.Was, p.AfterWas, p.Is, p.AfterIs = was[:i], was[i:], is[:j], is[j:]
				return p
			}
		}
	}
	return p
}

func meet(was, is []int32) bool {
	return min(len(was), len(is)) >= meetTokens && slices.Equal(was[:meetTokens], is[:meetTokens])
}

// PartAt is the place of a change that is known to be at the positions [begin, end) of the later prompt.
func PartAt(w telemetry.Words, begin, end int) Parting {
	from := min(max(begin-w.Begin, 0), len(w.Is))
	to := min(max(end-w.Begin, from), len(w.Is))
	p := Part(w)
	p.Before, p.Is, p.AfterIs = w.Is[:from], w.Is[from:to], w.Is[to:]
	return p
}

// Because is the reason of a miss as a sentence. Positions count from 0.
func Because(m telemetry.Miss, now time.Time) string {
	var facts []string
	if m.From != "" && !(m.From == telemetry.PlaceSlot && m.Detail != "") { // the detail says more
		facts = append(facts, from(m.From))
	}
	if !m.When.IsZero() {
		facts = append(facts, Ago(m.When, now))
	}
	if m.Detail != "" {
		facts = append(facts, m.Detail)
	}
	means := m.Cause.Explain().Means
	if len(facts) > 0 {
		means += " (" + strings.Join(facts, ", ") + ")"
	}
	return fmt.Sprintf("From token %s on: %s.", Count(int64(m.At)), means)
}

// neverStored is the remedy for pages that were evicted from the slot.
const neverStored = "The disk was slower than the model, or OLLAMA_KV_TIER_WRITE_GB_PER_DAY was reached; kvtier stat shows the bytes written."

// Remedy is the next step for a miss.
func Remedy(m telemetry.Miss) string {
	if m.Cause == telemetry.CauseEvicted && m.From == telemetry.PlaceSlot {
		return neverStored
	}
	return m.Cause.Explain().Remedy
}

// from says where evicted pages were.
func from(place string) string {
	switch place {
	case telemetry.PlaceSlot:
		return "before they were stored"
	case telemetry.PlaceRAM:
		return "from memory"
	}
	return "from the " + place + " tier"
}

// CauseTotal counts the misses of one cause.
type CauseTotal struct {
	telemetry.Reason[telemetry.Cause]
	Prompts int64 `json:"prompts"`
	Tokens  int64 `json:"tokens"` // that these prompts computed
}

// CauseTotals adds up the misses of models by cause, the cause with the most tokens first.
// Causes without a miss are left out.
func CauseTotals(models []telemetry.ModelState) []CauseTotal {
	all := []CauseTotal{}
	for _, e := range telemetry.Causes {
		c := CauseTotal{Reason: e}
		for _, m := range models {
			c.Prompts += total(m.Totals, telemetry.Series("ollama_kv_misses_total", "cause", string(e.Cause)))
			c.Tokens += total(m.Totals, telemetry.Series("ollama_kv_missed_tokens_total", "cause", string(e.Cause)))
		}
		if c.Prompts > 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b CauseTotal) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return all
}
