package llamatier

import (
	"context"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamatier/slotfile"
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
	look := func() (struct{}, error) { return struct{}{}, f.Room(size) }
	_, err := within(f.disk, f.disk.Patience.Find, look)
	return err == nil
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
