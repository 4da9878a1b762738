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

// ErrNotPlaced reports a page that ReadPlaced has read and whose rows cannot be used in place:
// the page is compressed, in the remote tier, or not in a file of the operating system.
var ErrNotPlaced = errors.New("diskstore: page cannot be used in place")

// Placed is the place of a page's rows on the local disk, for a caller that can read the rows
// from there again instead of writing a copy.
type Placed struct {
	// File is the page's file, open for reading only. File is the checked file, and no store
	// writes to that file again: its bytes stay the same after the page was evicted, demoted,
	// replaced or quarantined, and after the store was closed.
	File *os.File

	// Offsets are the offsets of the sections in File, in bytes, in the layout's order. The
	// rows of section i are the bytes from Offsets[i] on, token after token.
	Offsets []int64
}

// Close closes the file.
func (p *Placed) Close() error { return p.File.Close() }

// ReadPlaced does as ReadSections, and also returns the place of the rows. The file is opened
// once: the returned file is the checked one. The caller closes it.
//
// Besides the errors of ReadSections, ReadPlaced returns ErrNotPlaced for a page whose rows cannot
// be used in place on the local disk. After ErrNotPlaced, unlike after other errors, use has
// received the page.
func (s *Store) ReadPlaced(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how ...ReadOption) (*Placed, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer s.traffic.Enter()()
	if !s.ram.off() {
		return s.reader.placeWhole(ctx, ref, tokens, layout, use, how)
	}
	page, err := s.reader.readInto(ctx, ref, tokens, layout, use, how)
	if err != nil {
		return nil, err
	}
	placed, err := page.place(layout)
	if err != nil {
		page.blob.Close()
		return nil, fmt.Errorf("place page %v: %w", ref.Key, err)
	}
	return placed, nil
}

// placeWhole does as ReadPlaced, and keeps a page in memory that cannot be used in place.
func (r *reader) placeWhole(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how []ReadOption) (*Placed, error) {
	buf := r.takeWhole(layout)
	defer r.putWhole(buf)
	placed, err := r.placeInto(ctx, ref, tokens, layout, *buf, how)
	if err == nil || errors.Is(err, ErrNotPlaced) {
		if failed := use.all(layout, *buf); failed != nil {
			if placed != nil {
				placed.Close() // the file was only read
			}
			return nil, failed
		}
	}
	return placed, err
}

// placeInto reads a whole page into buf, also from memory, and returns the place of its rows.
// After ErrNotPlaced buf holds the page.
func (r *reader) placeInto(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how []ReadOption) (*Placed, error) {
	if err := checkRead(ref, tokens, layout, len(buf)); err != nil {
		return nil, err
	}
	if r.fromRAM(ctx, ref, tokens, layout, buf, true) {
		return nil, fmt.Errorf("place page %v: it is in memory: %w", ref.Key, ErrNotPlaced)
	}
	page, err := r.read(ctx, ref, tokens, layout, into(codecFor(r.codec, how), buf))
	if err != nil {
		return nil, err
	}
	placed, err := page.place(layout)
	if err != nil {
		page.blob.Close()
		r.keep(page, layout, buf)
		return nil, fmt.Errorf("place page %v: %w", ref.Key, err)
	}
	return placed, nil
}

// place returns the place of the layout's rows. The result owns the file; after an error the
// blob still does.
func (v verified) place(layout pagefile.Layout) (*Placed, error) {
	if v.level.name != tier.Local {
		// A reader of rows in place waits for the tier at each read, and has no other copy.
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
