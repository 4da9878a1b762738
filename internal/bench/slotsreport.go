package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Slots is the time between tokens of slots that decode, while another restores.
type Slots struct {
	Decoding      int    `json:"decoding"` // slots
	DecodeThreads int    `json:"decode_threads"`
	RestoreTokens int    `json:"restore_tokens"`
	Took          Series `json:"restore_took"`
	Idle          Gaps   `json:"idle"`      // the other slot does nothing
	Restoring     Gaps   `json:"restoring"` // from its lookup to its last row
	// Within is of the gaps that begin after the lookup. In those before it the runner also
	// takes the request in and tokenizes it, as for any prompt.
	Within Gaps `json:"within"`
	// Ratio is the p99 while restoring over that while idle, per repetition, and RatioWithin
	// the same of gaps that begin there.
	Ratio       Series `json:"p99_ratio"`
	RatioWithin Series `json:"p99_ratio_within"`
}

// Gaps sums up times between two tokens of one slot, in seconds.
type Gaps struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (s *Slots) print(w io.Writer) {
	fmt.Fprintf(w, "\nTime between tokens of %d slots that decode (%d threads) while one more restores %s tokens in %s, %d times\n\n",
		s.Decoding, s.DecodeThreads, show.Count(s.RestoreTokens), seconds(s.Took), len(s.Took.Values))
	row := func(name string, g Gaps) []string {
		cells := []string{name, show.Count(g.Count)}
		for _, v := range []float64{g.P50, g.P99, g.Max} {
			cells = append(cells, show.Seconds(toDuration(v)))
		}
		return cells
	}
	table.Print(w, []string{"the other slot", "gaps", "p50", "p99", "longest"}, [][]string{
		row("idle", s.Idle), row("restores", s.Restoring), row("… from its lookup on", s.Within),
	})
	fmt.Fprintf(w, "\np99 while it restores over idle, per repetition: %s; of gaps that begin after its lookup: %s\n", ratio(s.Ratio), ratio(s.RatioWithin))
}
