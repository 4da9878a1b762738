package llamatier

import (
	"context"
	"sync"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// reader reads pages of plans.
type reader struct {
	store   *disk
	form    form
	buffers sync.Pool // *[]byte
}

// page is a page that was read.
type page struct {
	layout pagefile.Layout
	buffer *[]byte
	err    error
}

// page reads a page of a plan.
func (r *reader) page(ctx context.Context, p *plan, i int) (pg page) {
	if pg.layout, pg.err = r.form.layout(p, i, p.refs[i].Stored); pg.err != nil {
		return pg
	}
	pg.buffer, pg.err = r.read(ctx, p, i, pg.layout)
	return pg
}

// read reads the sections of a page that a layout has, each byte of which is checked. Without an error
// the caller gives the buffer back; after one, a read that hangs may still use it.
func (r *reader) read(ctx context.Context, p *plan, i int, layout pagefile.Layout) (*[]byte, error) {
	ref := p.refs[i]
	buf := r.take(layout.Size())
	return buf, r.store.Read(ctx, ref, p.tokens[ref.Start:ref.End()], layout, diskstore.Into{Rows: *buf})
}

// take returns a buffer for a page.
func (r *reader) take(size int) *[]byte {
	buf, ok := r.buffers.Get().(*[]byte)
	if !ok || cap(*buf) < size {
		b := make([]byte, size)
		buf = &b
	}
	*buf = (*buf)[:size]
	return buf
}

// giveBack takes a buffer that nobody uses any more.
func (r *reader) giveBack(buf *[]byte) { r.buffers.Put(buf) }

// drop takes a page that nobody uses. A read that hangs still uses its buffer.
func (r *reader) drop(pg page) {
	if pg.err == nil {
		r.giveBack(pg.buffer)
	}
}
