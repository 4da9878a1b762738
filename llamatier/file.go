package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// fileSize is about the size of the file of a number of tokens, in bytes.
func (t *Tier) fileSize(tokens int) int64 { return t.opt.Shape.RowBytes(tokens, t.opt.Window) }

// newFile makes a file of about size bytes. A disk that hangs is not waited for.
func (t *Tier) newFile(size int64) (*slotfile.File, error) {
	create := func() (*slotfile.File, error) { return t.opt.Files.New(size) }
	return withinOr(t.disk, t.patience.find, create, func(f *slotfile.File, err error) {
		if err == nil {
			t.drop(f)
		}
	})
}

// asStream reports whether the file of a number of tokens may be a stream, and is not so small that
// it is in memory.
func (t *Tier) asStream(tokens int) bool {
	return t.opt.Files.Streams() && !t.opt.Files.Small(t.fileSize(tokens))
}

// fits reports whether there may be room for the file of a number of tokens. A stream needs room
// for a part of them.
func (t *Tier) fits(tokens int) bool {
	if t.opt.Files.Streams() {
		return true
	}
	look := func() (struct{}, error) { return struct{}{}, t.opt.Files.Room(t.fileSize(tokens)) }
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
