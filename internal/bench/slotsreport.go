package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Slots is the time between tokens of slots that decode, while another restores.
type Slots struct {
	Decoding      int            `json:"decoding"` // slots
	DecodeThreads int            `json:"decode_threads"`
	RestoreTokens int            `json:"restore_tokens"`
	Took          measure.Series `json:"restore_took"`
	Idle          Gaps           `json:"idle"`      // the other slot is idle
	Restoring     Gaps           `json:"restoring"` // from the restore's lookup to its last row
	// Ratio is the relative p99 of Restoring over that of Idle, per repetition.
	Ratio measure.Series `json:"p99_ratio"`
}

// Gaps summarizes the times between two tokens of a slot, in seconds.
type Gaps struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// Relative values are of each gap over the median gap just before the restore.
	P50Relative float64 `json:"p50_relative"`
	P99Relative float64 `json:"p99_relative"`
}

func (s *Slots) print(w io.Writer) {
	fmt.Fprintf(w, "\nTime between tokens of %d slots that decode (%d threads) while one more restores %s tokens in %s, %d times\n\n",
		s.Decoding, s.DecodeThreads, show.Count(s.RestoreTokens), seconds(s.Took), len(s.Took.Values))
	row := func(name string, g Gaps) []string {
		cells := []string{name, show.Count(g.Count)}
		for _, v := range []float64{g.P50, g.P99, g.Max} {
			cells = append(cells, show.Seconds(toDuration(v)))
		}
		return append(cells, fmt.Sprintf("%.2f", g.P50Relative), fmt.Sprintf("%.2f", g.P99Relative))
	}
	table.Print(w, []string{"the other slot", "gaps", "p50", "p99", "longest", "p50 over usual", "p99 over usual"}, [][]string{
		row("idle", s.Idle), row("restores", s.Restoring),
	})
	fmt.Fprintf(w, "\np99 over usual while it restores, over that while idle, per repetition: %s\n", ratio(s.Ratio))
}
