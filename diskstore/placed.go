package diskstore

import (
	"errors"
	"os"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// Placed is the place of a page's rows on the local disk, for a caller that can read the rows
// from there again instead of writing a copy.
type Placed struct {
	// File is the page's file, open for reading only, and the caller's to close. File is the
	// checked file, and no store
	// writes to that file again: its bytes stay the same after the page was evicted, demoted,
	// replaced or quarantined, and after the store was closed.
	File *os.File

	// Offsets are the offsets of the sections in File, in bytes, in the layout's order. The
	// rows of section i are the bytes from Offsets[i] on, token after token.
	Offsets []int64

	// Err says why File is nil although the page was read: it is compressed, not in the local tier,
	// or not in a file of the operating system.
	Err error
}

// take fills in the place of the layout's rows, and reports whether the place owns the page's file.
func (p *Placed) take(page verified, layout pagefile.Layout) bool {
	if p == nil {
		return false
	}
	file := osFile(page.blob)
	switch {
	case page.level.far:
		// A reader of rows in place waits for the tier at each read, and has no other copy.
		p.Err = errors.New("it is in the remote tier")
	case !page.header.Raw():
		p.Err = errors.New("it is compressed")
	case file == nil:
		p.Err = errors.New("it is in no file of the operating system")
	}
	if p.Err != nil {
		return false
	}
	at, _ := layout.Within(page.header.Layout)
	for _, i := range at {
		p.Offsets = append(p.Offsets, page.header.Sections[i].Offset)
	}
	p.File = file
	return true
}

// refuse notes why rows cannot be used in place.
func (p *Placed) refuse(because error) {
	if p != nil {
		p.Err = because
	}
}

// drop closes the file of rows that are not used.
func (p *Placed) drop() {
	if p != nil && p.File != nil {
		p.File.Close() // the file was only read
		*p = Placed{}
	}
}

// osFile returns the operating system's file that a blob reads, or nil for another kind of
// blob.
func osFile(b tier.Blob) *os.File {
	fb, ok := b.(*dir.Blob)
	if !ok {
		return nil
	}
	file, _ := fb.File.(*os.File)
	return file
}
