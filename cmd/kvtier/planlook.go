package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// planMeasureBytes are written to measure the disk: less than bench writes, so that a plan takes
// a moment.
const planMeasureBytes = 64e6

// surroundings are those of a plan.
type surroundings struct {
	at     *storage
	models *modelStore
	bars   *progress.Display
}

// around adds figures of this machine: rates that servers have measured, the disk's own
// rate, and how small pages become. The notes name those that cannot be found out.
func (l surroundings) around(ctx context.Context, in *sizing.Input, m foundModel, f planFlags) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if err := useRates(ctx, l.at, in, m, !f.noMeasure); err != nil {
		note("The rates that servers have measured are not known: %v.", err)
	}
	if in.Compute == nil {
		note("How quickly this machine computes the model is not known: give --prefill-tps, or plan again after a server has used the model.")
	}
	if f.readMB == 0 && !f.noMeasure {
		if err := measureDisk(ctx, l.at.config.Local, in, l.bars); err != nil {
			note("The disk was not measured: %v. Give --read-mb.", err)
		}
	}
	if in.Disk.Origin == "" {
		note("How quickly the disk reads is not known: give --read-mb, or leave --no-measure out.")
	}
	if f.prefill > 0 {
		note("--prefill-tps counts for every position, but a token takes longer the more tokens are before it: computing long prompts takes longer than these figures say.")
	}
	useEncoding(ctx, l.at, in, m)
	useSplit(l.at.config.Split, in)
	return notes
}

// useSplit adds the budgets that OLLAMA_KV_TIER_SPLIT makes for this model alone.
func useSplit(split *tierenv.Split, in *sizing.Input) {
	if split == nil {
		return
	}
	total := in.Shape.StoredBytes(int64(in.Context.Value), in.CacheType) * int64(in.Slots.Value)
	hot, warm, disk := split.Shares(total)
	for _, b := range []struct {
		name  string
		bytes int64
	}{{"split hot", hot}, {"split ram", warm}, {"split local", disk}} {
		in.Budgets = append(in.Budgets, sizing.Budget{Name: b.name, Room: sizing.Figure{
			Value: float64(b.bytes), Unit: sizing.Bytes, Origin: sizing.Computed, From: tierenv.SplitVariable,
		}})
	}
}

// useRates takes the rates that servers on this root have measured with the model's weights.
// The disk's own rate gives way to a measurement that follows.
func useRates(ctx context.Context, at *storage, in *sizing.Input, m foundModel, measures bool) error {
	path := filepath.Join(at.config.Local, "rates.json")
	kept, err := rates.Names(path)
	if err != nil || len(kept.Computing)+len(kept.Tiers) == 0 {
		return err
	}
	name := ""
	if in.Compute == nil && m.weights != "" {
		fingerprints, err := at.fingerprintsOf(ctx, m.weights, in.CacheType)
		if err != nil {
			return err
		}
		// The last that a server used.
		if i := slices.IndexFunc(kept.Computing, func(name string) bool {
			fingerprint, _, _ := strings.Cut(name, " ")
			return slices.Contains(fingerprints, fingerprint)
		}); i >= 0 {
			name = kept.Computing[i]
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
		if dir == "" || took <= 0 || !slices.Contains(kept.Tiers, dir) {
			return sizing.Figure{}
		}
		return sizing.Figure{Value: float64(page) / took, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: "by servers, in rates.json"}
	}
	if in.Disk.Origin == "" && !measures {
		in.Disk = rate(at.config.Local)
	}
	in.Remote = rate(at.config.Remote)
	return nil
}

// fingerprintsOf are the fingerprints of weights with a type of K/V that have pages.
func (at *storage) fingerprintsOf(ctx context.Context, weights, cacheType string) (list []string, err error) {
	err = at.with(ctx, func(root *roots) error {
		usage, err := root.Usage(ctx)
		if err != nil {
			return err
		}
		list = fingerprintsIn(slices.Concat(usage.Local.Fingerprints, usage.Remote.Fingerprints), weights, cacheType)
		return nil
	})
	return list, err
}

func fingerprintsIn(all []diskstore.FingerprintUsage, weights, cacheType string) (list []string) {
	for _, use := range all {
		if use.Identity[tierenv.KeyWeights] == weights && use.Identity[tierenv.KeyCacheType] == cacheType {
			list = append(list, use.Fingerprint.String())
		}
	}
	return list
}

// measureDisk measures the disk of the local tier, in its directory or, where that does not
// exist yet, in the nearest one above it.
func measureDisk(ctx context.Context, root string, in *sizing.Input, bars *progress.Display) error {
	dir := root
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		}
		above := filepath.Dir(dir)
		if above == dir {
			return fmt.Errorf("%s does not exist", root)
		}
		dir = above
	}
	out := benched{BytesPerToken: min(in.Shape.RowBytes(in.CacheType), maxTokenBytes)}
	if err := out.measure(ctx, dir, planMeasureBytes, bars); err != nil {
		return err
	}
	from := "now, in " + dir
	if out.ReadCold > 0 {
		in.Disk = sizing.Figure{Value: out.ReadCold, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: from}
	}
	in.Memory = sizing.Figure{Value: out.ReadWarm, Unit: sizing.BytesPerS, Origin: sizing.Measured, From: from + ", from the page cache"}
	return nil
}

// useEncoding takes the size of pages relative to their rows from the counters of servers.
func useEncoding(ctx context.Context, at *storage, in *sizing.Input, m foundModel) {
	in.Encoded = sizing.Figure{Value: 1, Unit: sizing.Ratio, Origin: sizing.Computed, From: "pages are not compressed"}
	if at.config.Compress {
		in.Encoded.Origin, in.Encoded.From = sizing.Assumed, "compressed pages may be smaller"
	}
	if m.weights == "" {
		return
	}
	state, err := at.state(ctx)
	if err != nil {
		return // no server has counted yet
	}
	if ratio, ok := encodedRatio(state, m.weights, in.CacheType); ok {
		in.Encoded = sizing.Figure{Value: ratio, Unit: sizing.Ratio, Origin: sizing.Measured, From: "by servers: bytes of page files ÷ bytes of their rows"}
	}
}

func encodedRatio(state telemetry.State, weights, cacheType string) (float64, bool) {
	raw, encoded := 0.0, 0.0
	for _, model := range state.Models {
		if model.Model.Weights == weights && model.Model.CacheType == cacheType {
			raw += model.Totals["ollama_kv_encoded_raw_bytes_total"]
			encoded += model.Totals["ollama_kv_encoded_bytes_total"]
		}
	}
	return encoded / max(raw, 1), raw > 0 && encoded > 0
}
