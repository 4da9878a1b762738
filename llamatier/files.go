package llamatier

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
)

// files makes the files through which the engine saves and restores slots, on a disk that may hang.
type files struct {
	*slotfile.Files
	disk *disk
}

// create makes a file of about size bytes. A disk that hangs is not waited for.
func (f *files) create(size int64) (*slotfile.File, error) {
	create := func() (*slotfile.File, error) { return f.New(size) }
	return engine.Wait(context.Background(), &f.disk.Disk, steady.Wait{Most: f.disk.Patience.Find}, create, func(late *slotfile.File, err error) {
		if err == nil {
			f.drop(late)
		}
	})
}

// asStream reports whether a file of about size bytes may be a stream, and is not so small that it is
// in memory.
func (f *files) asStream(size int64) bool { return f.Streams() && !f.Small(size) }

// fits reports whether there may be room for a file of about size bytes. A stream needs room for a
// part of them.
func (f *files) fits(size int64) bool {
	if f.Streams() {
		return true
	}
	return f.disk.do(f.disk.Patience.Find, func() error { return f.Room(size) }) == nil
}

// drop removes a file. Nothing is lost: pages are stored, or the engine holds the slot. A disk
// that hangs is not waited for.
func (f *files) drop(file *slotfile.File) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		file.Close()
	}()
	steady.Ended(done, f.disk.Patience.Find)
}

// disk is a store for which requests wait in bounded time, and the files beside it.
type disk struct{ engine.Disk[Store] }

// within runs an operation on the disk, and waits for it at most some time.
func within[T any](d *disk, most time.Duration, do func() (T, error)) (T, error) {
	return engine.Wait(context.Background(), &d.Disk, steady.Wait{Most: most}, do, nil)
}

// do does as within for an operation without a result.
func (d *disk) do(most time.Duration, do func() error) error {
	_, err := within(d, most, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (d *disk) put(ctx context.Context, p *pagefile.Page) error {
	return d.do(d.Patience.Page, func() error { return d.Store.Put(ctx, p) })
}

// writer returns the writer of a file. Writes to a disk end in time.
func (d *disk) writer(f *slotfile.File) io.WriterAt {
	if f.OnDisk() {
		return boundedWriter{d, f}
	}
	return f
}

type boundedWriter struct {
	d *disk
	f *slotfile.File
}

// WriteAt implements io.WriterAt. A write that is left behind has bytes of its own: a stream's bytes
// are in a buffer that serves the engine's next request.
func (w boundedWriter) WriteAt(p []byte, off int64) (int, error) {
	p = bytes.Clone(p)
	return within(w.d, w.d.Patience.Page, func() (int, error) { return w.f.WriteAt(p, off) })
}

// loading is the name, among the rates, of the step in which the engine reads a file.
const loading = "llama-server"

// form is the form of an engine's files and of the pages that are made of them.
type form struct {
	shape      *llamastate.Shape
	window     int          // positions that the engine's window keeps; 0 without a window
	pageTokens int          // of a page
	root       pagefile.Key // the parent of first pages, which is the fingerprint of the store
}

// fileSize is about the size of the file of a number of tokens, in bytes.
func (f form) fileSize(tokens int) int64 { return f.shape.RowBytes(tokens, f.window) }

// layout is that of a page of a plan with a number of tokens.
func (f form) layout(p *plan, page, tokens int) (pagefile.Layout, error) {
	sections := f.shape.Sections()
	if page == len(p.refs)-1 && f.shape.HasEnd() {
		sections = f.shape.EndSections(f.window)
	}
	return pagefile.NewLayout(sections, tokens)
}

// headerMax is more than the header of a usual page has.
const headerMax = 64 << 10

// rowsIn estimates the bytes of rows in a page's file. A file that is larger than the rows of its
// tokens has an end, if the model has ends.
func (f form) rowsIn(ref diskstore.Ref) int64 {
	rows := f.shape.RowBytes(ref.Stored, 0)
	for _, sections := range [][]pagefile.Section{f.shape.Sections(), f.shape.EndSections(f.window)} {
		layout, err := pagefile.NewLayout(sections, ref.Stored)
		if err != nil {
			continue
		}
		if rows = int64(layout.Size()); ref.Bytes <= rows+headerMax {
			break
		}
	}
	return max(rows, 1)
}

func (f form) costs(p *plan) rates.Chain {
	c := rates.Chain{Base: p.held, Indivisible: f.shape.HasEnd(), Then: loading}
	for i, ref := range p.refs {
		page := rates.Page{Start: int(ref.Start), Tokens: ref.Tokens, Tier: ref.Tier, Rows: f.shape.RowBytes(ref.Stored, 0)}
		if layout, err := f.layout(p, i, ref.Stored); err == nil {
			page.Rows = int64(layout.Size())
		}
		whole := f.rowsIn(ref)
		page.Bytes, page.Form = int64(float64(ref.Bytes)*float64(page.Rows)/float64(whole)), rates.FormOf(ref.Bytes, whole)
		c.Pages = append(c.Pages, page)
	}
	return c
}
