package trial

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/readahead"
)

const (
	// rowsLeast is the least size of the rows in a file, for pages that have as many: a disk gives
	// small files more slowly.
	rowsLeast = 16 << 20

	// filesLeast is the number of files of a form, and the number of files that are read at a time, as
	// in a restore.
	filesLeast = 3
	filesMost  = 32

	// rounds is the number of times that the files of both forms are read, in turn. The second half of
	// the rounds is not begun after roundsTime.
	rounds     = 5
	roundsTime = 10 * time.Second
)

// Disk makes files for a trial.
type Disk interface {
	// Write stores a page's file durably.
	Write(ctx context.Context, e *pagefile.Encoded) (File, error)
}

// File is a page's file for a trial.
type File interface {
	// Cold opens the file. Its bytes come from the disk where the system can drop them from memory.
	Cold(ctx context.Context) (tier.Blob, error)

	Remove()
}

// Result is the speed at which rows came back, in GB of 10⁹ bytes per second.
type Result struct {
	Raw        float64   `json:"raw_gb_per_s"`
	Compressed float64   `json:"compressed_gb_per_s"`
	Ratio      float64   `json:"ratio"` // bytes of raw files over those of compressed ones
	Processors int       `json:"processors"`
	When       time.Time `json:"when"`
}

// Pays reports whether compressed pages come back at least as quickly as raw ones.
func (r Result) Pays() bool { return r.Compressed >= r.Raw && r.Ratio > 1 }

// Page returns a copy of a page for a trial: as many of its sections, from the first on, as a file
// needs. The caller may use its own page again at once.
func Page(p *pagefile.Page) (*pagefile.Page, error) {
	all := p.Layout.Sections()
	n, rows := 0, 0
	for n < len(all) && rows < rowsLeast {
		rows += len(p.Layout.Rows(p.Payload, n))
		n++
	}
	layout, err := pagefile.NewLayout(all[:n], p.Layout.Tokens())
	if err != nil {
		return nil, fmt.Errorf("lay out a page for a trial: %w", err)
	}
	own := *p
	own.Tokens, own.Media = slices.Clone(p.Tokens), slices.Clone(p.Media)
	own.Layout, own.Payload = layout, make([]byte, layout.Size())
	for i := range n {
		copy(layout.Rows(own.Payload, i), p.Layout.Rows(p.Payload, i))
	}
	return &own, nil
}

// Bytes is the room that Run needs for a page: that of rows, and some more for headers.
func Bytes(p *pagefile.Page) int64 {
	size := int64(p.Layout.Size())
	return 2 * int64(files(p)) * (size + size/8 + 64<<10)
}

// files is the number of files of a form.
func files(p *pagefile.Page) int {
	return min(max(filesLeast, rowsLeast/max(1, p.Layout.Size())), filesMost)
}

// Options are the parameters of Run.
type Options struct {
	Fingerprint pagefile.Key // of the page
	PageTokens  int
	Codec       *pagefile.Codec

	// Quiet returns when nobody waits for the disk.
	Quiet func(ctx context.Context) error

	Now func() time.Time
}

// Run measures with files of a page.
func Run(ctx context.Context, disk Disk, p *pagefile.Page, o Options) (Result, error) {
	t := &trial{page: p, codec: o.Codec, now: o.Now}
	defer t.remove()
	var forms [2]*pagefile.Encoded
	for i, codec := range []*pagefile.Codec{nil, o.Codec} {
		e, err := pagefile.Encode(o.Fingerprint, o.PageTokens, p, codec)
		if err != nil {
			return Result{}, fmt.Errorf("encode a page for a trial: %w", err)
		}
		forms[i] = e
	}
	r := Result{Ratio: float64(forms[0].Header.FileBytes) / float64(forms[1].Header.FileBytes), Processors: runtime.GOMAXPROCS(0), When: o.Now()}
	if r.Ratio <= 1 {
		return r, nil
	}
	if err := t.write(ctx, disk, forms); err != nil {
		return Result{}, fmt.Errorf("write a page for a trial: %w", err)
	}
	err := t.measure(ctx, o.Quiet)
	r.Raw, r.Compressed = t.speed(0), t.speed(1)
	return r, err
}

// trial is the state of one Run. Index 0 is that of raw files, 1 that of compressed ones.
type trial struct {
	page  *pagefile.Page
	codec *pagefile.Codec
	now   func() time.Time
	files [2][]File
	took  [2][]time.Duration
}

func (t *trial) remove() {
	for _, f := range slices.Concat(t.files[0], t.files[1]) {
		f.Remove()
	}
}

// write makes the files of both forms.
func (t *trial) write(ctx context.Context, disk Disk, forms [2]*pagefile.Encoded) error {
	for i, e := range forms {
		for range files(t.page) {
			f, err := disk.Write(ctx, e)
			if err != nil {
				return err
			}
			t.files[i] = append(t.files[i], f)
		}
	}
	return nil
}

// measure reads the files of both forms in turn.
func (t *trial) measure(ctx context.Context, quiet func(context.Context) error) error {
	end := t.now().Add(roundsTime)
	for i := range rounds {
		if i > rounds/2 && t.now().After(end) {
			break
		}
		for form := range t.files {
			if err := quiet(ctx); err != nil {
				return err
			}
			took, err := t.read(ctx, t.files[form])
			if err != nil {
				return fmt.Errorf("read pages in a trial: %w", err)
			}
			t.took[form] = append(t.took[form], took)
		}
	}
	return nil
}

// read reads, checks and decodes files, a few at a time.
func (t *trial) read(ctx context.Context, files []File) (time.Duration, error) {
	blobs := make([]tier.Blob, 0, len(files))
	defer func() {
		for _, b := range blobs {
			b.Close()
		}
	}()
	for _, f := range files {
		b, err := f.Cold(ctx)
		if err != nil {
			return 0, err
		}
		blobs = append(blobs, b)
	}
	started := t.now()
	line := readahead.Begin(ctx, len(blobs), filesLeast, false, func(read func()) { go read() },
		func(ctx context.Context, i int) error { return t.readOne(ctx, blobs[i]) })
	var first error
	for read := line.Next(); read != nil; read = line.Next() {
		first = cmp.Or(first, <-read)
		line.Used()
	}
	line.Stop()
	return t.now().Sub(started), cmp.Or(first, ctx.Err())
}

func (t *trial) readOne(ctx context.Context, b tier.Blob) error {
	h, err := pagefile.ReadHeader(ctx, b)
	if err != nil {
		return err
	}
	return pagefile.ReadSections(ctx, b, h, h.All(), t.codec, func(int, []byte) error { return nil })
}

// speed is the median speed of a form.
func (t *trial) speed(form int) float64 {
	took := t.took[form]
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	rows := float64(len(t.files[form])) * float64(t.page.Layout.Size())
	return rows / took[len(took)/2].Seconds() / 1e9
}
