package share

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/table"
)

var (
	figures = flag.Bool("figures", false, "print the figures of docs/elastic.md, which takes a minute")
	prefill = flag.Float64("prefill", 1000, "tokens of prompts that a server computes in a second")
	load    = flag.Float64("load", 0.5, "new tokens of prompts, over those that one server can compute")
)

const (
	seeds  = 3
	bursts = 40 // 20 minutes of load
)

// TestFigures prints a static split beside kvtier balance, for each mix of load.
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("-figures prints the figures of docs/elastic.md")
	}
	var rows [][]string
	for _, servers := range []int{2, 3} {
		// Prompts that a part of the budget holds with ease, holds, and does not hold.
		for _, size := range [][2]int{{256, 2048}, {1024, 8192}, {1024, 24576}} {
			for _, hot := range []float64{0.5, 0.7, 0.9, 1} {
				c := quick(servers, *prefill, *load)
				c.Bursts = bursts
				m := Mix{Hot: hot, Small: size[0], Large: size[1]}
				var sum comparison
				for seed := range uint64(seeds) {
					requests, split, moved, err := both(t, c, m, seed, Balance)
					require.NoError(t, err)
					sum.add(requests, split, moved)
				}
				name := fmt.Sprintf("%d, %d–%d, %.0f %%", servers, m.Small, m.Large, 100*m.Hot)
				rows = append(rows, append([]string{name}, sum.row()...))
			}
		}
	}
	table.Print(os.Stdout, []string{"servers, prompts, share", "requests", "failed", "completed/s", "latency p50, p95, p99", "to first token p50, p95, p99", "gave way", "most memory"}, rows)
	fmt.Println("\nStatic split → kvtier balance. Times are of requests that both completed.")
}

// comparison adds up a split and a balance of the same requests.
type comparison struct {
	requests       int
	split, balance total
	throughput     []float64 // requests completed in a time, balance over split, of each seed
}

// total is one side. Times in seconds are those of requests that both sides completed.
type total struct {
	failed, gaveWay, most int
	latencies, firsts     []float64
}

func (b *comparison) add(requests []Request, split, moved Side) {
	b.requests += len(requests)
	b.split.add(requests, split, moved)
	b.balance.add(requests, moved, split)
	perSecond := func(s Side) float64 { return float64(s.Completed()) / max(s.End, time.Second).Seconds() }
	b.throughput = append(b.throughput, perSecond(moved)/perSecond(split))
}

func (o *total) add(requests []Request, of, other Side) {
	o.failed += of.Failed()
	o.gaveWay += of.GaveWay
	o.most = max(o.most, of.Most)
	for i, q := range requests {
		if !of.Outcomes[i].Failed && !other.Outcomes[i].Failed {
			o.latencies = append(o.latencies, (of.Outcomes[i].Done - q.At).Seconds())
			o.firsts = append(o.firsts, (of.Outcomes[i].First - q.At).Seconds())
		}
	}
}

func (b *comparison) row() []string {
	s, o := b.split, b.balance
	return []string{
		fmt.Sprint(b.requests), fmt.Sprintf("%d → %d", s.failed, o.failed), fmt.Sprintf("%.2f", measure.Quantile(b.throughput, 0.5)),
		quantiles(s.latencies) + " → " + quantiles(o.latencies) + " s", quantiles(s.firsts) + " → " + quantiles(o.firsts) + " s",
		fmt.Sprintf("%d → %d", s.gaveWay, o.gaveWay), fmt.Sprintf("%.1f %%", 100*float64(max(s.most, o.most))/float64(budget)),
	}
}

func quantiles(seconds []float64) string {
	return fmt.Sprintf("%.1f, %.1f, %.1f", measure.Quantile(seconds, 0.5), measure.Quantile(seconds, 0.95), measure.Quantile(seconds, 0.99))
}

// TestTimesAreOfRequestsThatBothSidesCompleted, and the others count as failed.
func TestTimesAreOfRequestsThatBothSidesCompleted(t *testing.T) {
	requests := []Request{{At: time.Second}, {At: 2 * time.Second}}
	one := Outcome{First: 2 * time.Second, Done: 4 * time.Second}
	other := Outcome{First: 3 * time.Second, Done: 12 * time.Second}
	var sum comparison
	sum.add(requests,
		Side{Outcomes: []Outcome{one, {Failed: true}}, Most: budget / 2, End: 10 * time.Second},
		Side{Outcomes: []Outcome{one, other}, Most: budget / 10 * 9, End: 12 * time.Second, GaveWay: 1})
	require.Equal(t, []string{
		"2", "1 → 0", "1.67", "3.0, 3.0, 3.0 → 3.0, 3.0, 3.0 s", "1.0, 1.0, 1.0 → 1.0, 1.0, 1.0 s", "0 → 1", "90.0 %",
	}, sum.row())
}
