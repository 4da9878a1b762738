package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/sizing"
)

// planFlags are the flags of plan. Sizes and numbers of tokens are texts with units.
type planFlags struct {
	context, vram, ram, ssd, tokensADay, tbw, cacheType string
	parallel                                            int
	prefill, readMB                                     float64
	noMeasure, observe                                  bool
	since                                               string
}

// Descriptions of the values of plan's flags.
const (
	giveSize   = "a size such as 8G, 200GB or 8GiB"
	giveTokens = "a number of tokens such as 131072, 500k or 2M"
)

const (
	planParallel = 1
	planContext  = "8192"
	planCache    = "f16"

	// assumedTBW is the writing for which a drive of 1 TB is commonly rated.
	assumedTBW = 600e12

	bytesPerMB = 1e6
)

func newPlanCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	f := planFlags{context: planContext, cacheType: planCache, parallel: planParallel}
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
recommends changes. Nothing is changed. --since compares with the output of an
earlier --observe --json.`,
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
			case f.since != "" && !f.observe:
				return cli.Usagef("--since compares what servers counted; give --observe, too")
			case f.observe:
				return observe(cmd.Context(), out, at, f.since)
			case len(args) == 0 || args[0] == "":
				return cli.Usagef("say for which model: a name that ollama list shows, or a GGUF file; or give --observe")
			}
			in, err := f.input(cmd.Flags(), at)
			if err != nil {
				return err
			}
			p, err := makePlan(cmd.Context(), in, f, surroundings{at, models, out.bars()}, args[0])
			if err != nil {
				return err
			}
			return out.show(plannedModel{p, p.Systemd(), p.Shell()}, func(w io.Writer) { printPlanned(w, p) })
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
	cli.Flag(flags, &f.prefill, "prefill-tps", givePrefill, "tokens per second that this machine computes of a prompt")
	cli.Flag(flags, &f.readMB, "read-mb", "MB per second", "rate of the disk in MB/s, instead of measuring it")
	flags.BoolVar(&f.noMeasure, "no-measure", false, "do not measure the disk")
	flags.BoolVar(&f.observe, "observe", false, "print the changes that the servers' counters recommend")
	cli.Flag(flags, &f.since, "since", giveFile, "state of an earlier --observe --json to compare with")
	return cmd
}

// plannedModel is the output of plan --json.
type plannedModel struct {
	*sizing.Plan
	Systemd string `json:"systemd"`
	Shell   string `json:"shell"`
}

// makePlan makes a plan for a model.
func makePlan(ctx context.Context, in *sizing.Input, f planFlags, look surroundings, model string) (*sizing.Plan, error) {
	found, err := findModel(look.models, model)
	if err != nil {
		return nil, err
	}
	if err := found.read(in); err != nil {
		return nil, err
	}
	if err := in.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	notes := look.around(ctx, in, found, f)
	if err := ctx.Err(); err != nil { // a measurement was interrupted
		return nil, err
	}
	p := sizing.Make(*in)
	p.Notes = append(p.Notes, notes...)
	return p, nil
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
	if f.readMB > 0 {
		in.Disk = sizing.Figure{Value: f.readMB * bytesPerMB, Unit: sizing.BytesPerS, Origin: sizing.Given, From: "--read-mb"}
	}
	if f.prefill > 0 {
		in.Compute = func(begin, end int64) float64 { return float64(end-begin) / f.prefill }
		in.ComputeFrom = sizing.Figure{Origin: sizing.Given, From: "--prefill-tps"}
	}
	if in.Written.Origin == "" {
		in.Written = sizing.Figure{Value: assumedTBW, Unit: sizing.Bytes, Origin: sizing.Assumed, From: "a common drive of 1 TB"}
	}
	return in, nil
}

// foundModel is a model's file.
type foundModel struct {
	name, path string
	weights    string // SHA-256, "" where it is not known without reading the whole file
}

// findModel finds a model by the name of a file, or else by its name in Ollama's model store.
func findModel(models *modelStore, model string) (foundModel, error) {
	if info, err := os.Stat(model); err == nil && info.Mode().IsRegular() {
		digest, _ := strings.CutPrefix(filepath.Base(model), "sha256-")
		if !isDigits(digest) || len(digest) != 64 {
			digest = ""
		}
		return foundModel{model, model, digest}, nil
	}
	names := models.names()
	for digest := range names.Names {
		if !names.Has(digest, model) {
			continue
		}
		if path := models.blob(digest); path != "" {
			return foundModel{model, path, digest}, nil
		}
		return foundModel{}, fmt.Errorf("the weights of %q are not in %s; run ollama pull %s", model, models.dir(), model)
	}
	return foundModel{}, fmt.Errorf("%q is neither a file nor a model in %s; give a name that ollama list shows, a GGUF file, or the directory of the models as --models", model, models.dir())
}

// read reads the model's file into a plan's input.
func (m foundModel) read(in *sizing.Input) error {
	shape, head, err := sizing.ReadShape(m.path)
	if err != nil {
		return err
	}
	in.Shape = shape
	in.Model = m.name
	in.Weights = sizing.Figure{Value: float64(head.WeightBytes), Unit: sizing.Bytes, Origin: sizing.Read, From: "the model's file"}
	return nil
}
