package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// print writes a report as tables.
func (r *Report) print(w io.Writer) {
	r.printHeading(w)
	if r.TTFT != nil {
		r.TTFT.print(w, r.Versions.StockIsPatched)
		r.TTFT.printWhere(w)
	}
	if r.Large != nil {
		r.Large.print(w)
	}
	if r.Chat != nil {
		r.Chat.print(w)
	}
	if r.Cost != nil {
		r.Cost.print(w)
	}
	if r.Restore != nil {
		r.Restore.print(w)
	}
	if r.Slots != nil {
		r.Slots.print(w)
	}
	if r.Warm != nil {
		r.Warm.print(w)
	}
	if r.Remote != nil {
		r.Remote.print(w)
	}
	if r.Moved != nil {
		r.Moved.print(w)
	}
	if r.Near != nil {
		r.Near.print(w)
	}
	if r.Paged != nil {
		r.Paged.print(w)
	}
	if r.Elastic != nil {
		r.Elastic.print(w)
	}
	if r.Store != nil {
		r.Store.print(w)
	}
}

func (r *Report) printHeading(w io.Writer) {
	m, s := r.Machine, r.Settings
	kind := ""
	if m.Virtual {
		kind = " (virtual machine)"
	}
	fmt.Fprintf(w, "machine   %s, %d cores%s, %.0f GiB, %s %s, %s\n",
		m.CPU, m.Cores, kind, float64(m.MemoryBytes)/(1<<30), m.OS, m.Kernel, m.Filesystem)
	if r.Versions.Kvtier != "" {
		fmt.Fprintf(w, "ollama    %s", r.Versions.Kvtier)
		if r.TTFT != nil && !r.Versions.StockIsPatched {
			fmt.Fprintf(w, "; stock: %s", stockVersion(r.Versions.Stock))
		}
		fmt.Fprintf(w, "\nmodel     %s; %s bytes of K/V per token\n", s.Model, show.Count(int(s.KVBytesPerToken)))
		fmt.Fprintf(w, "settings  context %s, pages of %d tokens, 1 slot; median (smallest–largest)\n",
			show.Count(s.NumCtx), s.PageTokens)
	}
	if m.BusyBefore > measure.BusyShare {
		fmt.Fprintf(w, "warning   the machine was %.0f %% busy with something else before: measure again when it is not\n", 100*m.BusyBefore)
	}
	if s.Quick {
		fmt.Fprintln(w, "warning   -quick: the figures mean nothing")
	}
}

func stockVersion(version string) string {
	if version == unknownVersion {
		return "unpatched, of unknown version"
	}
	return version + ", unpatched"
}

// seconds is a series of times: median (smallest–largest).
func seconds(s measure.Series) string {
	return spread(s, func(v float64) string { return show.Seconds(toDuration(v)) })
}

func rates(s measure.Series) string { return spread(s, show.Rate) }

func spread(s measure.Series, format func(float64) string) string {
	if len(s.Values) < 2 {
		return format(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", format(s.Median), format(s.Min), format(s.Max))
}

func (t *TTFT) print(w io.Writer, stockIsPatched bool) {
	stock := "stock Ollama"
	if stockIsPatched {
		stock = "tier off"
	}
	header := []string{"prompt", stock, "cold", "same slot", "restored after kill -9", "and empty page cache", "speedup", "over own cold"}
	var rows [][]string
	for _, p := range t.Points {
		uncached := "not measured"
		if p.RestoredUncached != nil {
			uncached = seconds(*p.RestoredUncached)
		}
		rows = append(rows, []string{
			show.Count(p.Tokens), seconds(p.Stock), seconds(p.Cold), seconds(p.SameSlot), seconds(p.Restored), uncached,
			show.Times(p.Speedup), show.Times(p.SpeedupCold),
		})
	}
	fmt.Fprintf(w, "\nTime to first token, model load taken off, %d times\n\n", len(t.Points[0].Stock.Values))
	table.Print(w, header, rows)
	if stockIsPatched {
		fmt.Fprintf(w, "\nNo unpatched Ollama was given (%s): the patched one with the tier off took its place.\n", stockEnv)
	}
}

// printWhere prints the parts of the time of a restored prompt.
func (t *TTFT) printWhere(w io.Writer) {
	header := []string{"where it goes"}
	parts := make([][]string, len(partNames))
	for i, name := range partNames {
		parts[i] = []string{name}
	}
	for _, p := range t.Points {
		header = append(header, show.Count(p.Tokens))
		for i, seconds := range t.parts(p) {
			parts[i] = append(parts[i], fmt.Sprintf("%.1f ms", seconds*1e3))
		}
	}
	fmt.Fprint(w, "\nRestored after kill -9\n\n")
	table.Print(w, header, parts)
}

var partNames = []string{
	"time to first token",
	"  HTTP, scheduling, sampling",
	"  carrying and tokenizing the prompt",
	"    of which in a warm runner",
	"  restore",
	"    of which reading alone takes",
	"  batch of the last token",
	"    of which in a warm runner",
}

// parts splits a restored prompt's time, in seconds, in the order of partNames. Every prompt
// spends the time that a short prompt spends outside the runner's batch; the further time of
// a longer prompt is carrying and tokenizing, if the difference is more than noise.
func (t *TTFT) parts(p Point) []float64 {
	fixed := t.Fixed.Median - t.FixedBatch.Median
	return []float64{
		p.Restored.Median,
		fixed,
		max(0, p.Outside.Median-fixed),
		max(0, p.SameSlot.Median-p.SameSlotBatch.Median-fixed),
		p.Took.Median,
		p.PlainRead.Median,
		p.Batch.Median,
		p.SameSlotBatch.Median,
	}
}

func perSecond(s measure.Series) string {
	return spread(s, func(v float64) string { return fmt.Sprintf("%.1f", v) })
}

func ratio(s measure.Series) string {
	return spread(s, func(v float64) string { return fmt.Sprintf("%.3f", v) })
}

func (p *Paged) print(w io.Writer) {
	var rows [][]string
	for _, c := range p.Capacities {
		rows = append(rows, []string{show.Count(c.NumCtx), perSecond(c.Decode), fmt.Sprintf("%.3f", c.Decode.Median/p.Capacities[0].Decode.Median)})
	}
	fmt.Fprintf(w, "\nPaged attention, decoding behind %s tokens, tokens per second (%d times %d tokens)\n\n",
		show.Count(p.UsedTokens), len(p.Capacities[0].Decode.Values), p.AnswerTokens)
	table.Print(w, []string{"context", "decode", "of the first"}, rows)
	fmt.Fprintf(w, "\nPaged against stock attention, %s tokens, tokens per second (%d pairs)\n\n", show.Count(p.PromptTokens), len(p.Prefill.Ratio.Values))
	table.Print(w, []string{"", "stock", "paged", "paged/stock of each pair"}, [][]string{
		{"prefill", perSecond(p.Prefill.Off), perSecond(p.Prefill.On), ratio(p.Prefill.Ratio)},
		{"decode", perSecond(p.Decode.Off), perSecond(p.Decode.On), ratio(p.Decode.Ratio)},
	})
}

func (c *Cost) print(w io.Writer) {
	fmt.Fprintf(w, "\nCost of the tier when nothing is restored, tokens per second (prompts of %s, answers of %d; %d and %d pairs)\n\n",
		show.Count(c.PromptTokens), c.AnswerTokens, len(c.Prefill.Ratio.Values), len(c.Decode.Ratio.Values))
	table.Print(w, []string{"", "tier off", "tier on", "on/off of each pair"}, [][]string{
		{"prefill", perSecond(c.Prefill.Off), perSecond(c.Prefill.On), ratio(c.Prefill.Ratio)},
		{"decode", perSecond(c.Decode.Off), perSecond(c.Decode.On), ratio(c.Decode.Ratio)},
	})
}

func (r *Restore) print(w io.Writer) {
	rows := [][]string{{"full", rates(r.Cached.Restore), rates(r.Cached.Read), fmt.Sprintf("%.2f", r.Cached.Ratio)}}
	if r.Uncached != nil {
		rows = append(rows, []string{"empty", rates(r.Uncached.Restore), rates(r.Uncached.Read), fmt.Sprintf("%.2f", r.Uncached.Ratio)})
	}
	fmt.Fprintf(w, "\nRestoring %s tokens (%d files, %.0f MB) against reading the files, %d times\n\n",
		show.Count(r.Tokens), r.Files, float64(r.Bytes)/1e6, len(r.Cached.Read.Values))
	table.Print(w, []string{"page cache", "restore", "plain read", "ratio"}, rows)
}

func (r *Remote) print(w io.Writer) {
	var rows [][]string
	for _, p := range r.Points {
		rows = append(rows, []string{
			show.Rate(float64(p.BytesPerSecond)), seconds(p.Decided), show.Count(p.DecidedTokens), seconds(p.Restored), seconds(p.Computed),
			fmt.Sprintf("%.2f", p.Ratio), seconds(p.Unknown),
		})
	}
	fmt.Fprintf(w, "\nTime to first token, %s tokens of which all but the last are on a remote tier, first request after a restart, %d times\n\n",
		show.Count(r.Tokens), len(r.Points[0].Decided.Values))
	table.Print(w, []string{"remote tier", "ours", "of it restored", "all restored", "all computed", "ours/better", "tier not known yet"}, rows)
}
