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

// Chain implements Store. A store that hangs has no pages.
func (d *disk) Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := within(d, d.patience.find, func() ([]diskstore.Ref, error) { return d.store.Chain(ctx, tokens, media), nil })
	return refs
}

// ChainLossy implements Store. A store that hangs has no pages.
func (d *disk) ChainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := within(d, d.patience.find, func() ([]diskstore.Ref, error) {
		return d.store.ChainLossy(ctx, parent, start, tokens, media), nil
	})
	return refs
}

// TailsWithin implements Store.
func (d *disk) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref {
	refs, _ := within(d, d.patience.find, func() ([]diskstore.Ref, error) {
		return d.store.TailsWithin(ctx, parent, start, tokens, media), nil
	})
	return refs
}

// Has implements Store.
func (d *disk) Has(key pagefile.Key) bool {
	has, _ := within(d, d.patience.find, func() (bool, error) { return d.store.Has(key), nil })
	return has
}

// LayoutOf implements Store.
func (d *disk) LayoutOf(ctx context.Context, ref diskstore.Ref) (pagefile.Layout, error) {
	return within(d, d.patience.find, func() (pagefile.Layout, error) { return d.store.LayoutOf(ctx, ref) })
}

// Put implements Store.
func (d *disk) Put(ctx context.Context, p *pagefile.Page) error {
	_, err := within(d, d.patience.page, func() (struct{}, error) { return struct{}{}, d.store.Put(ctx, p) })
	return err
}

// Read implements Store. After steady.ErrHung nobody may use buf.
func (d *disk) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) error {
	_, err := within(d, d.patience.page, func() (struct{}, error) {
		return struct{}{}, d.store.Read(ctx, ref, tokens, layout, buf, how...)
	})
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
