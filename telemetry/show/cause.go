package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

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
