package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/pagedenv"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/show"
)

// planFlags are the flags of plan. Sizes and numbers of tokens are texts with units.
type planFlags struct {
	context, vram, ram, ssd, tokensADay, tbw, cacheType string
	parallel, team                                      int
	prefill, readMB                                     float64
	noMeasure, observe                                  bool
}

const (
	giveSize   = "a size such as 8G, 200GB or 8GiB"
	giveTokens = "a number of tokens such as 131072, 500k or 2M"
	giveRate   = "tokens per second"
)

// assumedTBW is the writing for which a drive of 1 TB is commonly rated.
const assumedTBW = 600e12

func newPlanCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	f := planFlags{context: "8192", cacheType: "f16", parallel: 1}
	cmd := &cobra.Command{
		Use:   "plan [MODEL]",
		Short: "Work out how much K/V fits where, and the settings for it",
		Long: `Work out how much K/V a model needs, how much of it fits in video memory, memory
and disk, how long a restore takes against computing, how long the disk lasts,
and the variables to set. Every figure says where it comes from.

MODEL is a name as ollama list shows it, or a GGUF file. Sizes are decimal: 8G
is 8,000,000,000 bytes; 8GiB is binary.

The disk is measured for a moment, in the directory of the pages, unless
--read-mb gives its rate, or --no-measure is given. The rate of computing is that
which servers have measured with this model, or --prefill-tps.

With --observe, and without MODEL, plan reads the counters of the servers and
recommends changes. Nothing is changed.`,
		Example: `  kvtier plan qwen3 --ctx 131072 --vram 8G --ram 32G --ssd 200G --tokens-per-day 2M
  kvtier plan model.gguf --ctx 32768 --parallel 4 --cache-type q8_0 --prefill-tps 900
  kvtier plan --observe`,
		Args: cobra.ArbitraryArgs, // RunE looks
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return cli.Usagef("plan takes one model, and not %d", len(args))
			case f.observe && len(args) > 0:
				return cli.Usagef("--observe is about all models; leave %q out", args[0])
			case f.observe:
				return observe(cmd.Context(), out, at)
			case len(args) == 0 || args[0] == "":
				return cli.Usagef("say for which model: a name that ollama list shows, or a GGUF file; or give --observe")
			}
			p := planner{planFlags: f, at: at, models: models, bars: out.bars()}
			made, err := p.plan(cmd.Context(), cmd.Flags(), args[0])
			if err != nil {
				return err
			}
			return out.show(made, func(w io.Writer) { printPlanned(w, made) })
		},
	}
	flags := cmd.Flags()
	cli.Flag(flags, &f.context, "ctx", giveTokens, "length of the context, in tokens")
	cli.Flag(flags, &f.vram, "vram", giveSize, "video memory")
	cli.Flag(flags, &f.ram, "ram", giveSize, "memory for K/V")
	cli.Flag(flags, &f.ssd, "ssd", giveSize, "room on the local disk for pages")
	cli.Flag(flags, &f.tokensADay, "tokens-per-day", giveTokens, "tokens that are computed in a day")
	cli.Flag(flags, &f.tbw, "tbw", giveSize, "writing for which the disk is rated, such as 600T")
	cli.Flag(flags, &f.cacheType, "cache-type", "f16, q8_0 or q4_0", "type of K/V, as OLLAMA_KV_CACHE_TYPE")
	cli.Flag(flags, &f.parallel, "parallel", "a number of slots", "slots, as OLLAMA_NUM_PARALLEL")
	cli.Flag(flags, &f.team, "team", "a number of people", "people who share an engine, each with a conversation of --ctx")
	cli.Flag(flags, &f.prefill, "prefill-tps", giveRate, "tokens per second that this machine computes of a prompt")
	cli.Flag(flags, &f.readMB, "read-mb", "MB per second", "rate of the disk in MB/s, instead of measuring it")
	flags.BoolVar(&f.noMeasure, "no-measure", false, "do not measure the disk")
	flags.BoolVar(&f.observe, "observe", false, "print the changes that the servers' counters recommend")
	return cmd
}

type planner struct {
	planFlags
	at     *storage
	models *modelStore
	bars   *progress.Display

	in      *sizing.Input
	weights string   // SHA-256 of the model, "" where it is not known without reading the whole file
	notes   []string // on figures that cannot be found out
}

func (p *planner) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

func (p *planner) plan(ctx context.Context, flags *pflag.FlagSet, model string) (made *sizing.Plan, err error) {
	if p.in, err = p.input(flags, p.at); err != nil {
		return nil, err
	}
	path, weights, err := p.models.file(model)
	if err != nil {
		return nil, err
	}
	p.weights = weights
	shape, head, err := sizing.ReadShape(path)
	if err != nil {
		return nil, err
	}
	p.in.Model, p.in.Shape = model, shape
	p.in.Weights = sizing.Figure{Value: float64(head.WeightBytes), Unit: sizing.Bytes, Origin: sizing.Read, From: "the model's file"}
	if err := p.in.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	p.lookAround(ctx)
	if err := ctx.Err(); err != nil { // a measurement was interrupted
		return nil, err
	}
	made = sizing.Make(*p.in)
	made.Notes = append(made.Notes, p.notes...)
	return made, nil
}

// input reads the flags. A default is an assumption.
func (f planFlags) input(flags *pflag.FlagSet, at *storage) (*sizing.Input, error) {
	origin := func(flag string) sizing.Origin {
		if flags.Changed(flag) {
			return sizing.Given
		}
		return sizing.Assumed
	}
	in := &sizing.Input{CacheType: f.cacheType, PageTokens: int64(at.config.PageTokens), RAMPays: at.config.Compress || at.config.Remote != ""}
	for _, flag := range []struct {
		name, text string
		to         *sizing.Figure
		unit       string
		parse      func(string) (int64, error)
	}{
		{"ctx", f.context, &in.Context, sizing.Tokens, sizing.ParseTokens},
		{"vram", f.vram, &in.VRAM, sizing.Bytes, sizing.ParseBytes},
		{"ram", f.ram, &in.RAM, sizing.Bytes, sizing.ParseBytes},
		{"ssd", f.ssd, &in.SSD, sizing.Bytes, sizing.ParseBytes},
		{"tokens-per-day", f.tokensADay, &in.TokensADay, sizing.TokensPerDay, sizing.ParseTokens},
		{"tbw", f.tbw, &in.Written, sizing.Bytes, sizing.ParseBytes},
	} {
		if flag.text == "" {
			continue
		}
		n, err := flag.parse(flag.text)
		if err != nil {
			return nil, cli.Usagef("--%s: %w", flag.name, err)
		}
		*flag.to = sizing.Figure{Value: float64(n), Unit: flag.unit, Origin: origin(flag.name), From: "--" + flag.name}
	}
	for name, rate := range map[string]float64{"prefill-tps": f.prefill, "read-mb": f.readMB} {
		if rate < 0 || math.IsNaN(rate) || math.IsInf(rate, 0) {
			return nil, cli.Usagef("--%s is %v; give a rate above 0", name, rate)
		}
	}
	in.Slots = sizing.Figure{Value: float64(f.parallel), Unit: sizing.Count, Origin: origin("parallel"), From: "--parallel"}
	if flags.Changed("team") {
		in.Team = sizing.Figure{Value: float64(f.team), Unit: sizing.Count, Origin: sizing.Given, From: "--team"}
	}
	if f.readMB > 0 {
		in.Disk = sizing.Figure{Value: f.readMB * 1e6, Unit: sizing.BytesPerS, Origin: sizing.Given, From: "--read-mb"}
	}
	if f.prefill > 0 {
		in.Compute = func(begin, end int64) float64 { return float64(end-begin) / f.prefill }
		in.ComputeFrom = sizing.Figure{Origin: sizing.Given, From: "--prefill-tps"}
	}
	if err := readEngine(in, at); err != nil {
		return nil, err
	}
	if in.Written.Origin == "" {
		in.Written = sizing.Figure{Value: assumedTBW, Unit: sizing.Bytes, Origin: sizing.Assumed, From: "a common drive of 1 TB"}
	}
	return in, nil
}

// readEngine reads the variables of elastic memory and paged attention, and of tiers that count for them.
func readEngine(in *sizing.Input, at *storage) error {
	var err error
	if in.Paged, err = env.Bool("OLLAMA_PAGED_ATTN"); err != nil {
		return cli.Usagef("%w", err)
	}
	in.Elastic = env.Asked("OLLAMA_KVCACHED")
	for name, read := range map[string]struct {
		to    *sizing.Figure
		parse func(name string) (int64, error)
	}{
		"OLLAMA_PAGED_HOST_GB":     {&in.PagedHost, hostBytes},
		"OLLAMA_PAGED_VRAM_GB":     {&in.PagedVRAM, gigabytes},
		"OLLAMA_KVCACHED_LIMIT_MB": {&in.ElasticLimit, mebibytes},
	} {
		if env.Value(name) == "" {
			continue
		}
		n, err := read.parse(name)
		if err != nil {
			return cli.Usagef("%w", err)
		}
		*read.to = sizing.Figure{Value: float64(n), Unit: sizing.Bytes, Origin: sizing.Given, From: name}
	}
	if in.PagedCells, err = pagedCells(); err != nil {
		return cli.Usagef("%w", err)
	}
	if in.PagedAfter, err = pagedAfter(); err != nil {
		return cli.Usagef("%w", err)
	}
	if split := at.config.Split; split != nil {
		in.Hot = sizing.Figure{Value: split.Hot / 100, Unit: sizing.Ratio, Origin: sizing.Given, From: "HOT of " + tierenv.SplitVariable}
	}
	in.Cold = tierenv.ColdText(at.config.ColdFor("", at.log))
	return nil
}

// pagedCells is the number of tokens of a page of paged attention.
func pagedCells() (sizing.Figure, error) {
	const size, choice = "OLLAMA_PAGED_CHUNK_SIZE", "OLLAMA_PAGED_SELECT"
	page, selected, err := pagedenv.Cells()
	cells := sizing.Figure{Value: float64(page), Unit: sizing.Tokens, Origin: sizing.Read, From: "default of " + size}
	switch {
	case env.Value(size) != "":
		cells.Origin, cells.From = sizing.Given, size
	case !selected.All():
		cells.From += " with " + choice
	}
	return cells, err
}

// pagedAfter is the number of tokens before pages, where a variable says it.
func pagedAfter() (sizing.Figure, error) {
	after, err := pagedenv.After()
	if after < 0 {
		return sizing.Figure{}, err
	}
	from := "OLLAMA_PAGED_AFTER"
	if env.Value(from) == "" {
		from = "OLLAMA_PAGED_SELECT"
	}
	return sizing.Figure{Value: float64(after), Unit: sizing.Tokens, Origin: sizing.Given, From: from}, err
}

func gigabytes(name string) (int64, error) { return env.Gigabytes(name, 0) }

func hostBytes(string) (int64, error) {
	n, err := pagedenv.HostBytes()
	return int64(n), err
}

// mebibytes reads a size in MiB, of less than 2^59 bytes.
func mebibytes(name string) (int64, error) {
	n, err := strconv.ParseInt(env.Value(name), 10, 40)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s=%q is not a number of MiB", name, env.Value(name))
	}
	return n << 20, nil
}

// planMeasureBytes are written to measure the disk: less than bench writes, so that a plan takes a moment.
const planMeasureBytes = 64e6

// lookAround adds figures of this machine: rates that servers have measured, and the disk's own rate.
func (p *planner) lookAround(ctx context.Context) {
	if err := p.useRates(ctx); err != nil {
		p.note("The rates that servers have measured are not known: %v.", err)
	}
	if p.in.Compute == nil {
		p.note("How quickly this machine computes the model is not known: give --prefill-tps, or plan again after a server has used the model.")
	}
	if p.readMB == 0 && !p.noMeasure {
		if err := p.measureDisk(ctx); err != nil {
			p.note("The disk was not measured: %v. Give --read-mb.", err)
		}
	}
	if p.in.Disk.Origin == "" {
		p.note("How quickly the disk reads is not known: give --read-mb, or leave --no-measure out.")
	}
	p.noteReturns()
	if p.prefill > 0 {
		p.note("--prefill-tps counts for every position, but a token takes longer the more tokens are before it: computing long prompts takes longer than these figures say.")
	}
	p.in.Encoded = sizing.Figure{Value: 1, Unit: sizing.Ratio, Origin: sizing.Computed, From: "pages are not compressed"}
	if p.at.config.Compress {
		p.in.Encoded.Origin, p.in.Encoded.From = sizing.Assumed, "compressed pages may be smaller"
	}
}

// returnsMin is the number of pages used again, below which they are no evidence.
const returnsMin = 200

// noteReturns tells what more room would have kept, by what became of the directory's pages so far.
func (p *planner) noteReturns() {
	content, err := os.ReadFile(filepath.Join(p.at.config.Local, "v1", "usage.json"))
	if err != nil {
		return // no server has stored anything
	}
	uses := ledger.Read(content).Uses()
	again, left := uses.Pages(), uses.Left
	switch gone := left[0] + left[1] + left[2]; {
	case again < returnsMin:
	case gone == 0:
		p.note("All of %s pages that were used again here were still stored: more room would have given back no more.", count(again))
	default:
		p.note("Of %s pages that were used again here, %s had left for want of room. Twice the room would have kept %s of these, four times the room %s.",
			count(again), count(gone), count(left[0]), count(left[0]+left[1]))
	}
}

// useRates takes the rates that servers on this root have measured with the model's weights.
// The disk's own rate gives way to a measurement that follows.
func (p *planner) useRates(ctx context.Context) error {
	in := p.in
	path := filepath.Join(p.at.config.Local, "rates.json")
	computing, tiers, err := rates.Names(path)
	if err != nil || len(computing)+len(tiers) == 0 {
		return err
	}
	name := ""
	if in.Compute == nil && p.weights != "" {
		usage, err := p.at.usage(ctx)
		if err != nil {
			return err
		}
		all := slices.Concat(usage.Local.Fingerprints, usage.Remote.Fingerprints)
		// The last that a server used.
		if i := slices.IndexFunc(computing, func(name string) bool {
			fingerprint, _, _ := strings.Cut(name, " ")
			return slices.ContainsFunc(all, func(use diskstore.FingerprintUsage) bool {
				return use.Fingerprint.String() == fingerprint && use.Identity[tierenv.KeyWeights] == p.weights && use.Identity[tierenv.KeyCacheType] == in.CacheType
			})
		}); i >= 0 {
			name = computing[i]
		}
	}
	known, err := rates.Open(path, name, nil)
	if err != nil {
		return err
	}
	if known.Known() {
		in.Compute = func(begin, end int64) float64 { return known.Computing(int(begin), int(end)).Seconds() }
		in.ComputeFrom = sizing.Figure{Origin: sizing.Measured, From: "by servers, in rates.json"}
	}
	page := in.Shape.RowBytes(in.CacheType) * in.PageTokens
	rate := func(dir string) sizing.Figure {
		took := known.Reading(rates.Page{Tokens: int(in.PageTokens), Bytes: page, Tier: dir}).Seconds()
		if dir == "" || took <= 0 || !slices.Contains(tiers, dir) {
			return sizing.Figure{}
		}
		return sizing.Figure{Value: float64(page) / took, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: "by servers, in rates.json"}
	}
	if in.Disk.Origin == "" && p.noMeasure {
		in.Disk = rate(p.at.config.Local)
	}
	in.Remote = rate(p.at.config.Remote)
	return nil
}

// measureDisk measures the disk of the local tier, in its directory or, where that does not
// exist yet, in the nearest one above it.
func (p *planner) measureDisk(ctx context.Context) error {
	dir, err := tierenv.Nearest(p.at.config.Local)
	if err != nil {
		return err
	}
	in := p.in
	out := benched{BytesPerToken: min(in.Shape.RowBytes(in.CacheType), maxTokenBytes)}
	if err := out.measure(ctx, dir, planMeasureBytes, p.bars); err != nil {
		return err
	}
	from := "now, in " + dir
	if out.ReadCold > 0 {
		in.Disk = sizing.Figure{Value: out.ReadCold, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: from}
	}
	in.Memory = sizing.Figure{Value: out.ReadWarm, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: from + ", from the page cache"}
	return nil
}

// observe prints the advice of the counters.
func observe(ctx context.Context, out *output, at *storage) error {
	now, err := at.state(ctx)
	if err != nil {
		return err
	}
	o := sizing.Advise(now)
	return out.show(o, func(w io.Writer) { printObserved(w, o) })
}

// printObserved prints the advice of counters.
func printObserved(w io.Writer, o sizing.Observed) {
	fmt.Fprintf(w, "%s in %s, counted since %s.\n", plural(int64(o.Prompts), "prompt"), show.Seconds(o.Elapsed.Seconds()), o.Since.Format(time.DateTime))
	if len(o.Advice) == 0 {
		fmt.Fprintln(w, "\nThese counters recommend nothing: either all is well, or there is too little evidence yet.")
		return
	}
	for _, advice := range o.Advice {
		fmt.Fprintf(w, "\n%s\n  %s: %s.\n", advice.Says, advice.Variable, advice.Change)
		for _, e := range advice.Evidence {
			fmt.Fprintf(w, "  %s: %s\n", e.Name, evidence(e))
		}
	}
}

// evidence prints a number: bytes and whole ones as elsewhere.
func evidence(e sizing.Evidence) string {
	switch {
	case e.Value != math.Trunc(e.Value) || math.Abs(e.Value) > sizing.AmountMax:
		return strconv.FormatFloat(e.Value, 'f', -1, 64)
	case strings.HasPrefix(e.Name, "bytes "):
		return humanBytes(int64(e.Value))
	}
	return count(int64(e.Value))
}
