package diskstore

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// ErrNotPlaced reports a page that ReadPlaced has read and whose rows cannot be
// used where they lie: it is compressed, in the remote tier, or in no file of
// the operating system.
var ErrNotPlaced = errors.New("diskstore: page cannot be used in place")

// Placed says where a page's rows lie on the local disk, for a caller that can
// read them again from there instead of writing a copy.
type Placed struct {
	// File is the page's file, open for reading only. It is the file that was
	// checked, and no store writes to it again: it gives the same bytes
	// after the page was evicted, demoted, replaced or quarantined, and after the
	// store was closed.
	File *os.File

	// Offsets has the place of each section, in the layout's order. The rows of
	// section i are its bytes from Offsets[i] on, token after token, as Read puts
	// them into its buffer.
	Offsets []int64
}

// Close closes the file.
func (p *Placed) Close() error { return p.File.Close() }

// ReadPlaced is Read, and also says where what it has read lies. The file is
// opened once: the one that was checked is the one that is given out. The caller
// closes it.
//
// Besides the errors of Read it returns ErrNotPlaced for a page that has no
// place on the local disk that could be used as it is. Then, unlike after any
// other error, buf holds the page.
func (s *Store) ReadPlaced(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...ReadOption) (*Placed, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer s.traffic.Enter()()
	if err := s.checkRead(ref, tokens, layout, buf); err != nil {
		return nil, err
	}
	if s.readRAM(ctx, ref, tokens, layout, buf, true) {
		return nil, fmt.Errorf("place page %v: it is in memory: %w", ref.Key, ErrNotPlaced)
	}
	page, err := s.read(ctx, ref, tokens, layout, buf, s.codecFor(how))
	if err != nil {
		return nil, err
	}
	placed, err := page.place(layout)
	if err != nil {
		page.blob.Close()
		s.keepRead(page, layout, buf)
		return nil, fmt.Errorf("place page %v: %w", ref.Key, err)
	}
	return placed, nil
}

// place returns where the layout's rows lie. The file is the result's from then
// on, the blob's after an error.
func (v verified) place(layout pagefile.Layout) (*Placed, error) {
	if v.level.name != tier.Local {
		// Whoever reads rows in place waits for them, and has no other copy.
		return nil, fmt.Errorf("it is in the %s tier: %w", v.level.name, ErrNotPlaced)
	}
	if !v.header.Raw() {
		return nil, fmt.Errorf("it is compressed: %w", ErrNotPlaced)
	}
	file := osFile(v.blob)
	if file == nil {
		return nil, fmt.Errorf("it is in no file of the operating system: %w", ErrNotPlaced)
	}
	placed := &Placed{File: file}
	at, _ := layout.Within(v.header.Layout)
	for _, i := range at {
		placed.Offsets = append(placed.Offsets, v.header.Sections[i].Offset)
	}
	return placed, nil
}

// osFile returns the operating system's file that a blob reads, nil when it
// reads something else.
func osFile(b tier.Blob) *os.File {
	fb, ok := b.(*dir.Blob)
	if !ok {
		return nil
	}
	file, _ := fb.File.(*os.File)
	return file
}
