package llamatier

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// disk is a Store whose operations end in time. A local disk may hang, and requests wait for
// look-ups. While an operation hangs, all others fail at once.
type disk struct {
	store    Store
	patience *patience
	guard    steady.Guard
}

// within runs an operation and waits for it at most some time.
func within[T any](d *disk, most time.Duration, do func() (T, error)) (T, error) {
	return withinOr(d, most, do, func(T, error) {})
}

// withinOr does as within, and calls late with a result that comes later.
func withinOr[T any](d *disk, most time.Duration, do func() (T, error), late func(T, error)) (T, error) {
	return steady.Do(context.Background(), &d.guard, steady.Wait{Most: most}, do, late)
}

// Find implements Store. A store that hangs has no pages.
func (d *disk) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	found, _ := within(d, d.patience.find, func() (diskstore.Found, error) { return d.store.Find(ctx, p), nil })
	return found
}

// Has implements Store.
func (d *disk) Has(key pagefile.Key) bool {
	has, _ := within(d, d.patience.find, func() (bool, error) { return d.store.Has(key), nil })
	return has
}

// Put implements Store.
func (d *disk) Put(ctx context.Context, p *pagefile.Page) error {
	_, err := within(d, d.patience.page, func() (struct{}, error) { return struct{}{}, d.store.Put(ctx, p) })
	return err
}

// Read implements Store. After steady.ErrHung nobody may use into.
func (d *disk) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	_, err := within(d, d.patience.page, func() (struct{}, error) { return struct{}{}, d.store.Read(ctx, ref, tokens, layout, into) })
	return err
}

// writer returns the writer of a file. Writes to a disk end in time.
func (d *disk) writer(f *slotfile.File) io.WriterAt {
	if f.OnDisk() {
		return steadyWriter{d, f}
	}
	return f
}

type steadyWriter struct {
	d *disk
	f *slotfile.File
}

// WriteAt implements io.WriterAt. A write that is left behind has bytes of its own: a stream's bytes
// are in a buffer that serves the engine's next request.
func (w steadyWriter) WriteAt(p []byte, off int64) (int, error) {
	p = bytes.Clone(p)
	return within(w.d, w.d.patience.page, func() (int, error) { return w.f.WriteAt(p, off) })
}
