package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/sizing"
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

var (
	giveBenchGB    = fmt.Sprintf("%v to %v", benchMinGB, benchMaxGB)
	giveTokenBytes = fmt.Sprintf("1 to %d", maxTokenBytes)
)

type benchFlags struct {
	model         string
	bytesPerToken int64
	gb            float64
}

func newBenchCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	f := benchFlags{gb: 1}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the local tier's disk, and the restore speed to expect",
		Long: `Write pages with random rows beside those of the local tier, make them durable,
read them back through the page store, and remove them. Pages are read from the disk,
where the page cache can be bypassed, and from memory.

Tokens per second follow from the size of a token: --bytes-per-token, or that of
--model in f16. kvtier plan compares them with computing.

Running servers share the disk; measure when they are idle.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			done, err := f.run(cmd.Context(), at, models, out.bars())
			if err != nil {
				return err
			}
			return out.show(done, done.print)
		},
	}
	cli.Flag(cmd.Flags(), &f.model, "model", giveModel, "name of a model, or its GGUF file")
	cli.Flag(cmd.Flags(), &f.bytesPerToken, "bytes-per-token", giveTokenBytes, "K/V of one token, all layers")
	cli.Flag(cmd.Flags(), &f.gb, "gb", giveBenchGB, "GB to write")
	return cmd
}

func (f benchFlags) check() error {
	switch {
	case !(f.gb >= benchMinGB && f.gb <= benchMaxGB):
		return cli.Usagef("--gb is %v; give %s", f.gb, giveBenchGB)
	case f.bytesPerToken < 0 || f.bytesPerToken > maxTokenBytes:
		return cli.Usagef("--bytes-per-token is %d; give %s", f.bytesPerToken, giveTokenBytes)
	case f.model != "" && f.bytesPerToken != 0:
		return cli.Usagef("--model and --bytes-per-token both say how large a token is; give one of them")
	}
	return nil
}

func (f benchFlags) run(ctx context.Context, at *storage, models *modelStore, bars *progress.Display) (benched, error) {
	out := benched{Root: at.config.Local}
	var err error
	if out.BytesPerToken, out.From, err = f.tokenSize(models); err != nil {
		return out, err
	}
	err = at.with(ctx, func(*roots) error { // refuses an unsafe directory
		return out.measure(ctx, at.config.Local, int64(f.gb*bytesPerGB), bars)
	})
	out.RestoreTokens = cmp.Or(out.ReadCold, out.ReadWarm) / float64(out.BytesPerToken)
	return out, err
}

// tokenSize determines the bytes of K/V of a token, and says where they are from.
func (f benchFlags) tokenSize(models *modelStore) (n int64, from string, err error) {
	switch {
	case f.bytesPerToken > 0:
		return f.bytesPerToken, "--bytes-per-token", nil
	case f.model == "":
		return defaultTokenBytes, "32 layers of 8 heads of 128 in f16", nil
	}
	path, _, err := models.file(f.model)
	if err != nil {
		return 0, "", fmt.Errorf("%w; or give --bytes-per-token", err)
	}
	shape, _, err := sizing.ReadShape(path)
	if err != nil {
		return 0, "", fmt.Errorf("%w; give --bytes-per-token", err)
	}
	return shape.RowBytes("f16"), "the model's shape, in f16", nil
}

// measure writes and reads pages in a temporary directory below root: on the same disk, and
// outside the directories that servers count and collect.
func (out *benched) measure(ctx context.Context, root string, size int64, bars *progress.Display) (err error) {
	dir, err := os.MkdirTemp(vfs.Through(root), "bench-")
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

// read looks the pages up and reads them in order, as a restore does, and returns the bytes per second.
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

// dropCache drops the pages' files from the page cache, and reports whether the system can do so.
func (d *disk) dropCache() (bool, error) {
	return runtime.GOOS == "linux", filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return vfs.OS.Uncache(path)
	})
}

func (out benched) print(w io.Writer) {
	rate := func(r float64) string { return humanBytes(int64(r)) + "/s" }
	field(w, "disk", "%s", out.Root)
	field(w, "measured", "%s in pages of %s", humanBytes(out.Bytes), humanBytes(out.PageBytes))
	field(w, "write", "%s, durable", rate(out.Write))
	if out.ReadCold > 0 {
		field(w, "read, disk", "%s", rate(out.ReadCold))
	} else {
		field(w, "read, disk", "not known: this system cannot be told to forget files")
	}
	field(w, "read, memory", "%s", rate(out.ReadWarm))
	field(w, "token", "%s of K/V (%s)", humanBytes(out.BytesPerToken), out.From)
	field(w, "restore", "%s tokens/s", count(int64(out.RestoreTokens)))
}
