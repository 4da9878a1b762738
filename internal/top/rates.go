package top

import (
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// samplesMax is the number of states from which rates are made: the latest few seconds.
const samplesMax = 6

// sample has the totals of all models at a time.
type sample struct {
	at                                time.Time
	restored, computed, read, written float64
}

// rates remembers the latest totals of a server.
type rates struct {
	since   time.Time
	samples []sample
}

// sum adds up a series over all models.
func sum(models []telemetry.ModelState, series string) float64 {
	n := 0.0
	for _, m := range models {
		n += m.Totals[series]
	}
	return n
}

func sampleOf(s telemetry.State) sample {
	tokens := func(source string) float64 {
		return sum(s.Models, telemetry.Series("ollama_kv_prompt_tokens_total", "source", source))
	}
	now := sample{
		at: s.At, computed: tokens(telemetry.PlaceCompute),
		read: sum(s.Models, "ollama_kv_restored_bytes_total"), written: sum(s.Models, "ollama_kv_encoded_bytes_total"),
	}
	for _, place := range []string{telemetry.PlaceRAM, telemetry.PlaceLocal, telemetry.PlaceRemote, telemetry.PlaceShifted} {
		now.restored += tokens(place)
	}
	return now
}

// add notes a state. Totals that began anew, or a clock that was set back, begin anew here too;
// the same state again says nothing.
func (r *rates) add(s telemetry.State) {
	now := sampleOf(s)
	if n := len(r.samples); n > 0 {
		last := r.samples[n-1]
		switch {
		case now.at.Equal(last.at):
			return
		case !s.Since.Equal(r.since), now.at.Before(last.at), now.restored < last.restored, now.computed < last.computed:
			r.samples = nil
		}
	}
	r.since = s.Since
	r.samples = append(r.samples, now)
	if len(r.samples) > samplesMax {
		r.samples = r.samples[1:]
	}
}

// perSecond returns rates over the latest seconds, and false while one state alone is known.
func (r *rates) perSecond() (sample, bool) {
	n := len(r.samples)
	if n < 2 {
		return sample{}, false
	}
	first, last := r.samples[0], r.samples[n-1]
	s := last.at.Sub(first.at).Seconds()
	if s <= 0 {
		return sample{}, false
	}
	return sample{
		at: last.at, restored: (last.restored - first.restored) / s, computed: (last.computed - first.computed) / s,
		read: max(0, last.read-first.read) / s, written: max(0, last.written-first.written) / s,
	}, true
}
