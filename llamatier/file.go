package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// fileSize is about the size of the file of a number of tokens, in bytes.
func (t *Tier) fileSize(tokens int) int64 { return t.opt.Shape.RowBytes(tokens, t.opt.Window) }

// savedSize is about the size of the file into which a slot with a number of tokens is saved. It has
// checkpoints as well, which may be more than all rows: about those of the last save.
func (t *Tier) savedSize(s *slot, tokens int) int64 { return t.fileSize(tokens) + s.checkpoints }

// newFile makes a file of about size bytes. A disk that hangs is not waited for.
func (t *Tier) newFile(size int64) (*slotfile.File, error) {
	create := func() (*slotfile.File, error) { return t.opt.Files.New(size) }
	return withinOr(t.disk, t.patience.find, create, func(f *slotfile.File, err error) {
		if err == nil {
			t.drop(f)
		}
	})
}

// asStream reports whether a file of about size bytes may be a stream, and is not so small that it is
// in memory.
func (t *Tier) asStream(size int64) bool {
	return t.opt.Files.Streams() && !t.opt.Files.Small(size)
}

// fits reports whether there may be room for a file of about size bytes. A stream needs room for a
// part of them.
func (t *Tier) fits(size int64) bool {
	if t.opt.Files.Streams() {
		return true
	}
	look := func() (struct{}, error) { return struct{}{}, t.opt.Files.Room(size) }
	_, err := within(t.disk, t.patience.find, look)
	return err == nil
}

// drop removes a file. Nothing is lost: pages are stored, or the engine holds the slot. A disk
// that hangs is not waited for.
func (t *Tier) drop(f *slotfile.File) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Close()
	}()
	late := time.NewTimer(t.patience.find)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}
