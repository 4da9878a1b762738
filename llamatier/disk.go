package llamatier

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// disk is a store for which requests wait in bounded time, and the files beside it.
type disk struct{ engine.Disk[Store] }

// within runs an operation on the disk, and waits for it at most some time.
func within[T any](d *disk, most time.Duration, do func() (T, error)) (T, error) {
	return engine.Wait(context.Background(), &d.Disk, steady.Wait{Most: most}, do, nil)
}

// put does as [Store.Put].
func (d *disk) put(ctx context.Context, p *pagefile.Page) error {
	_, err := within(d, d.Patience.Page, func() (struct{}, error) { return struct{}{}, d.Store.Put(ctx, p) })
	return err
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
