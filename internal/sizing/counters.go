package sizing

import (
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// counters are the totals of a root's processes in a time.
type counters struct {
	totals  map[string]float64 // of all models
	elapsed time.Duration
	state   telemetry.State
}

// Continues reports whether a state has the totals of an earlier one, and those since.
func Continues(now, before telemetry.State) bool {
	return before.Root == now.Root && before.Since.Equal(now.Since) && before.At.Before(now.At)
}

// countersOf is the difference of two states of one root, or the totals since they began where
// now does not continue before.
func countersOf(now telemetry.State, before *telemetry.State) counters {
	c := counters{totals: map[string]float64{}, state: now, elapsed: now.At.Sub(now.Since)}
	add := func(s telemetry.State, sign float64) {
		for _, m := range s.Models {
			for series, n := range m.Totals {
				c.totals[series] += sign * n
			}
		}
	}
	add(now, 1)
	if before != nil && Continues(now, *before) {
		add(*before, -1)
		c.elapsed = now.At.Sub(before.At)
	}
	c.elapsed = max(0, c.elapsed)
	return c
}

// of is the total of one series.
func (c counters) of(name string, pairs ...string) float64 {
	return max(0, c.totals[telemetry.Series(name, pairs...)])
}

// sum is the total of all series of a metric that have a label of a value.
func (c counters) sum(name, label, value string) (n float64) {
	part := label + `="` + value + `"`
	for series, total := range c.totals {
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, part) {
			n += total
		}
	}
	return max(0, n)
}

// tier is the state of a tier, and false where no process has it.
func (c counters) tier(name string) (telemetry.Tier, bool) {
	for _, t := range c.state.Tiers {
		if t.Name == name {
			return t, true
		}
	}
	return telemetry.Tier{}, false
}

// queue is the fullest queue of the processes, as a share of its limit.
func (c counters) queue() (share, bytes, limit float64) {
	for _, p := range c.state.Processes {
		l := p.Gauges["ollama_kv_queue_limit_bytes"]
		if b := p.Gauges["ollama_kv_queue_bytes"]; l > 0 && b/l > share {
			share, bytes, limit = b/l, b, l
		}
	}
	return share, bytes, limit
}
