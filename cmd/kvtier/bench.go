package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/cli"
)

// benched is the output of bench --json. Rates are in bytes or tokens per second; rates in
// tokens are 0 when the size of a token is not known.
type benched struct {
	Root          string  `json:"root"`
	Bytes         int64   `json:"bytes"`
	PageBytes     int64   `json:"page_bytes"`
	BytesPerToken int64   `json:"bytes_per_token"`
	From          string  `json:"bytes_per_token_from"`
	Write         float64 `json:"write_bytes_per_s"`
	ReadCold      float64 `json:"read_cold_bytes_per_s"` // 0 where the page cache cannot be bypassed
	ReadWarm      float64 `json:"read_warm_bytes_per_s"`
	RestoreTokens float64 `json:"restore_tokens_per_s"` // of the cold reads if there are any
	PrefillTokens float64 `json:"prefill_tokens_per_s"` // value of --prefill
	Speedup       float64 `json:"speedup"`              // RestoreTokens over PrefillTokens
}

// benchFlags are the flags of bench.
type benchFlags struct {
	model         string
	bytesPerToken int64
	prefill       float64
	gb            float64
}

const (
	bytesPerGB = 1e9

	// defaultTokenBytes is the size of a token's K/V in f16 with 32 layers of 8 heads of
	// 128, as in many 8B models.
	defaultTokenBytes = 131072

	// maxTokenBytes keeps a page, which is built in memory, below 4 GiB.
	maxTokenBytes = 16<<20 - 1

	benchMinGB, benchMaxGB = 0.01, 1000
)

// Descriptions of the values of bench's flags.
var (
	giveBenchGB    = fmt.Sprintf("%v to %v", benchMinGB, benchMaxGB)
	giveTokenBytes = fmt.Sprintf("1 to %d", maxTokenBytes)
	givePrefill    = "tokens per second"
)

func newBenchCommand(a *app) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the local tier's disk, and the restore speed to expect",
		Long: `Write pages with random rows beside those of the local tier, make them durable,
read them back through the page store, and remove them. Pages are read from the disk,
where the page cache can be bypassed, and from memory.

Tokens per second follow from the size of a token: --bytes-per-token, or the size
in the pages or in the GGUF file of --model. With --prefill, the rate at which this
machine computes a prompt, bench compares reading with computing.

Running servers share the disk; measure when they are idle.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bench(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.model, "model", "", "GGUF file, or "+modelUsage)
	cmd.Flags().Int64Var(&f.bytesPerToken, "bytes-per-token", 0, "K/V of one token, all layers")
	cmd.Flags().Float64Var(&f.prefill, "prefill", 0, "tokens per second that this machine computes of a prompt")
	cmd.Flags().Float64Var(&f.gb, "gb", 1, "GB to write")
	cli.Give(cmd.Flags(), "model", giveModel)
	cli.Give(cmd.Flags(), "bytes-per-token", giveTokenBytes)
	cli.Give(cmd.Flags(), "prefill", givePrefill)
	cli.Give(cmd.Flags(), "gb", giveBenchGB)
	return cmd
}

func (a *app) bench(ctx context.Context, f benchFlags) error {
	switch {
	case !(f.gb >= benchMinGB && f.gb <= benchMaxGB):
		return cli.Usagef("--gb is %v; give %s", f.gb, giveBenchGB)
	case f.bytesPerToken < 0 || f.bytesPerToken > maxTokenBytes:
		return cli.Usagef("--bytes-per-token is %d; give %s", f.bytesPerToken, giveTokenBytes)
	case f.prefill < 0 || math.IsNaN(f.prefill) || math.IsInf(f.prefill, 0):
		return cli.Usagef("--prefill is %v; give %s", f.prefill, givePrefill)
	case f.model != "" && f.bytesPerToken != 0:
		return cli.Usagef("--model and --bytes-per-token both say how large a token is; give one of them")
	}
	out := benched{Root: a.config.Local, PrefillTokens: f.prefill}
	err := a.with(ctx, func(root *roots) error { // refuses an unsafe directory
		if err := a.tokenSize(ctx, root, f, &out); err != nil {
			return err
		}
		return a.measure(ctx, a.config.Local, int64(f.gb*bytesPerGB), &out)
	})
	if err != nil {
		return err
	}
	read := out.ReadCold
	if read == 0 {
		read = out.ReadWarm
	}
	out.RestoreTokens = read / float64(out.BytesPerToken)
	if f.prefill > 0 {
		out.Speedup = out.RestoreTokens / f.prefill
	}
	if a.asJSON {
		return a.json(out)
	}
	a.printBenched(out)
	return nil
}

// tokenSize determines the bytes of K/V of a token.
func (a *app) tokenSize(ctx context.Context, root *roots, f benchFlags, out *benched) error {
	switch {
	case f.bytesPerToken > 0:
		out.BytesPerToken, out.From = f.bytesPerToken, "--bytes-per-token"
		return nil
	case f.model == "":
		out.BytesPerToken, out.From = defaultTokenBytes, "32 layers of 8 heads of 128 in f16"
		return nil
	case filepath.Ext(f.model) == ".gguf":
		n, err := modelTokenBytes(f.model)
		out.BytesPerToken, out.From = n, "the model's shape, in f16"
		return err
	}
	p, err := a.pick(ctx, root, f.model)
	if err != nil {
		return fmt.Errorf("%w; or give its GGUF file, or --bytes-per-token", err)
	}
	out.BytesPerToken, err = a.storedTokenBytes(ctx, root, p)
	out.From = "stored pages of " + f.model
	return err
}

// measure writes and reads pages in a temporary directory below root: on the same disk, and
// outside the directories that servers count and collect.
func (a *app) measure(ctx context.Context, root string, size int64, out *benched) (err error) {
	dir, err := os.MkdirTemp(root, "bench-")
	if err != nil {
		return fmt.Errorf("make a directory to measure in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := newDisk(ctx, dir, size, out.BytesPerToken)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.store.Close()) }()
	out.PageBytes = int64(d.layout.Size())
	out.Bytes = out.PageBytes * int64(d.pages)
	bars := a.newBars()
	defer bars.Close()
	bar := bars.Bytes("measuring")
	d.progress = func(n int64) {
		d.done += n
		bar.Progress(d.done, 3*out.Bytes) // written, and read twice
	}
	if out.Write, err = d.write(ctx); err != nil {
		return err
	}
	cold, err := d.dropCache()
	if err != nil {
		return err
	}
	rate, err := d.read(ctx)
	if err != nil {
		return err
	}
	if cold {
		out.ReadCold = rate
	}
	out.ReadWarm, err = d.read(ctx)
	return err
}

// disk is a page store to measure.
type disk struct {
	dir      string
	store    *diskstore.Store
	first    pagefile.Key // parent of the first page
	layout   pagefile.Layout
	tokens   []int32
	pages    int
	buf      []byte
	done     int64
	progress func(n int64)
}

// newDisk opens a store whose pages have sections of 2 KiB per token, as in many models, or
// larger ones where a page would have too many sections.
func newDisk(ctx context.Context, dir string, size, tokenBytes int64) (*disk, error) {
	row := max(2048, tokenBytes/1024)
	var sections []pagefile.Section
	for rest := tokenBytes; rest > 0; rest -= row {
		sections = append(sections, pagefile.Section{
			Layer: uint16(len(sections) / 2), Kind: pagefile.Kind(len(sections) % 2), RowBytes: uint32(min(rest, row)),
		})
	}
	layout, err := pagefile.NewLayout(sections, diskstore.DefaultPageTokens)
	if err != nil {
		return nil, fmt.Errorf("lay out a page of %d bytes a token: %w", tokenBytes, err)
	}
	var fingerprint pagefile.Key
	rand.Read(fingerprint[:])
	store, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint, Identity: map[string]string{"tool": "kvtier bench"},
		Local: diskstore.TierConfig{Root: dir},
	})
	if err != nil {
		return nil, err
	}
	d := &disk{dir: dir, store: store, first: fingerprint, layout: layout, buf: make([]byte, layout.Size())}
	d.pages = int(max(1, size/int64(layout.Size())))
	d.tokens = make([]int32, d.pages*diskstore.DefaultPageTokens)
	for i := range d.tokens {
		d.tokens[i] = int32(i)
	}
	rand.Read(d.buf)
	return d, nil
}

// write stores the pages and returns the bytes per second that became durable.
func (d *disk) write(ctx context.Context) (float64, error) {
	parent := d.first
	var took time.Duration
	for i := range d.pages {
		at := i * diskstore.DefaultPageTokens
		page := pagefile.Page{
			Parent: parent, Start: uint32(at), Tokens: d.tokens[at : at+diskstore.DefaultPageTokens],
			Layout: d.layout, Payload: d.buf,
		}
		rand.Read(d.buf[:pagefile.PageAlign]) // all pages differ
		began := time.Now()
		if err := d.store.Put(ctx, &page); err != nil {
			return 0, fmt.Errorf("write page %d of %d: %w", i+1, d.pages, err)
		}
		took += time.Since(began)
		parent = page.Key()
		d.progress(int64(len(d.buf)))
	}
	return float64(len(d.buf)*d.pages) / took.Seconds(), nil
}

// read looks the pages up and reads them in order, as a restore does, and returns the bytes
// per second.
func (d *disk) read(ctx context.Context) (float64, error) {
	began := time.Now()
	refs := d.store.Find(ctx, diskstore.Prompt{Tokens: d.tokens}).Exact
	if len(refs) != d.pages {
		return 0, fmt.Errorf("read the pages back: %d of %d are there; is the disk full?", len(refs), d.pages)
	}
	for _, ref := range refs {
		tokens := d.tokens[ref.Start : int(ref.Start)+ref.Tokens]
		if err := d.store.Read(ctx, ref, tokens, d.layout, diskstore.Into{Rows: d.buf}); err != nil {
			return 0, err
		}
		d.progress(int64(len(d.buf)))
	}
	return float64(len(d.buf)*d.pages) / time.Since(began).Seconds(), nil
}

// dropCache drops the pages' files from the page cache, and reports whether the system can
// do so.
func (d *disk) dropCache() (bool, error) {
	dropped := true
	err := filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		ok, err := measure.ForgetFile(path)
		dropped = dropped && ok
		return err
	})
	return dropped, err
}

func (a *app) printBenched(out benched) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(a.stdout, "%-15s%s\n", name, fmt.Sprintf(format, args...))
	}
	rate := func(r float64) string { return humanBytes(int64(r)) + "/s" }
	line("disk", "%s", out.Root)
	line("measured", "%s in pages of %s", humanBytes(out.Bytes), humanBytes(out.PageBytes))
	line("write", "%s, durable", rate(out.Write))
	if out.ReadCold > 0 {
		line("read, disk", "%s", rate(out.ReadCold))
	} else {
		line("read, disk", "not known: this system cannot be told to forget files")
	}
	line("read, memory", "%s", rate(out.ReadWarm))
	line("token", "%s of K/V (%s)", humanBytes(out.BytesPerToken), out.From)
	line("restore", "%s tokens/s", count(int64(out.RestoreTokens)))
	switch {
	case out.PrefillTokens == 0:
	case out.Speedup >= 1:
		line("against", "%s tokens/s of prefill: restoring is %.1f times as quick", count(int64(out.PrefillTokens)), out.Speedup)
	default:
		line("against", "%s tokens/s of prefill: computing is quicker, and pages are read only where that changes", count(int64(out.PrefillTokens)))
	}
}
