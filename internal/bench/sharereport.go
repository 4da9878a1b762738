package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

func (r *Share) print(w io.Writer) {
	c := r.Config
	fmt.Fprintf(w, "\nServers of %d slots share the memory of %s tokens: bursts every 30 s in turn, prefill %s tokens/s, decode %.0f tokens/s (%d times)\n\n",
		c.Slots, show.Count(c.Budget), show.Count(int(c.Prefill)), c.Decode, len(r.Mixes[0].Throughput.Values))
	var rows [][]string
	for _, m := range r.Mixes {
		rows = append(rows, []string{
			m.name(), show.Count(m.Requests), fmt.Sprintf("%d → %d", m.Split.Failed, m.Balance.Failed),
			fmt.Sprintf("%.2f", m.Throughput.Median), m.Split.Latency.beside(m.Balance.Latency), m.Split.First.beside(m.Balance.First),
			fmt.Sprintf("%d → %d", m.Split.GaveWay, m.Balance.GaveWay), show.Percent(max(m.Split.Most, m.Balance.Most)),
		})
	}
	table.Print(w, []string{"servers, prompts, share", "requests", "failed", "completed/s", "latency p50, p95, p99", "to first token p50, p95, p99", "gave way", "most memory"}, rows)
	fmt.Fprint(w, "\nStatic split → kvtier balance. Times are of requests that both completed.\n")
}

// name tells servers, prompts, and the share of a burst that one server gets.
func (m *ShareMix) name() string {
	return fmt.Sprintf("%d, %s–%s, %.0f %%", m.Servers, show.Count(m.Small), show.Count(m.Large), 100*m.Hot)
}

// beside are the quantiles of two sides.
func (q ShareQuantiles) beside(other ShareQuantiles) string {
	return fmt.Sprintf("%.1f, %.1f, %.1f → %.1f, %.1f, %.1f s", q.P50, q.P95, q.P99, other.P50, other.P95, other.P99)
}
