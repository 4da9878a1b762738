package pagefile

import (
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Source is a page file that can be read.
type Source interface {
	// Size is the length of the file.
	Size() int64

	// ReadAt fills p from offset off, or returns io.EOF or io.ErrUnexpectedEOF when
	// the file ends first. After an error p is undefined, and not written to any
	// more.
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// firstReadBytes is how much of a file is read to learn the header's size. It
// holds the whole header of a usual page: 256 tokens and 64 sections.
const firstReadBytes = 4096

// ReadHeader reads and checks the header region of blob.
func ReadHeader(ctx context.Context, blob Source) (*Header, error) {
	fileBytes := blob.Size()
	if fileBytes < 0 {
		return nil, Damaged("file is %d bytes", fileBytes)
	}
	region := make([]byte, min(firstReadBytes, fileBytes))
	if err := ReadFull(ctx, blob, region, 0); err != nil {
		return nil, err
	}
	size, err := headerSize(region, fileBytes)
	if err != nil {
		return nil, err
	}
	if have := int64(len(region)); size > have {
		region = append(make([]byte, 0, size), region...)[:size]
		if err := ReadFull(ctx, blob, region[have:], have); err != nil {
			return nil, err
		}
	}
	return decodeHeader(region[:size], fileBytes)
}

// ReadFull is Source.ReadAt with the end of the file as damage.
func ReadFull(ctx context.Context, blob Source, p []byte, off int64) error {
	err := blob.ReadAt(ctx, p, off)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Damaged("file ends before byte %d", off+int64(len(p)))
	}
	return err
}

// Misplaced marks the ErrMismatch of a well-formed page in another page's place.
type Misplaced struct{ error }

func (m *Misplaced) Unwrap() error { return m.error }

// CheckName returns ErrMismatch, as misplaced, unless h belongs at name.
func (h *Header) CheckName(name Name) error {
	if err := h.compareName(name); err != nil {
		return &Misplaced{err}
	}
	return nil
}

func (h *Header) compareName(name Name) error {
	switch {
	case h.Fingerprint != name.Fingerprint:
		return Mismatch("fingerprint in file is %v, want %v", h.Fingerprint, name.Fingerprint)
	case h.Key != name.Key:
		return Mismatch("key in file is %v, want %v", h.Key, name.Key)
	case h.Tail() != (name.Class == ClassTail):
		return Mismatch("page of %d of %d tokens is stored as tail: %t", len(h.Tokens), h.PageTokens, name.Class == ClassTail)
	case name.Class == ClassTail && h.Parent != name.Parent:
		return Mismatch("parent in file is %v, want %v", h.Parent, name.Parent)
	}
	return nil
}

// Selection is what of a page is read: the sections of a layout that are wanted,
// and where they are in the page's own.
type Selection struct {
	Layout
	at []int
}

// Select returns the selection of a layout's sections, false where the page does not have
// all of them in that order.
func (h *Header) Select(l Layout) (Selection, bool) {
	at, ok := l.Within(h.Layout)
	return Selection{l, at}, ok
}

// All selects every section of the page.
func (h *Header) All() Selection {
	sel, _ := h.Select(h.Layout)
	return sel
}

// ReadPayload reads the selected sections of a page into buf, which is the
// selection's Size() bytes, and checks them, the padding after each and the
// footer. Besides buf it uses at most as much memory as they take in the file.
// When it returns nobody writes to buf any more.
//
// pieces are read one after the other, so that the system sees a sequence and
// reads ahead of it; several at once only where each waits for a network. They
// are checked and decoded meanwhile, on all processors unless c is for gentle reads.
func ReadPayload(ctx context.Context, blob Source, h *Header, sel Selection, c *Codec, buf []byte) error {
	checks, ctx := errgroup.WithContext(ctx) // which ends with the first damage
	checks.SetLimit(runtime.GOMAXPROCS(0))
	var reads errgroup.Group
	reads.SetLimit(ReadsAtOnce(blob))
	read := readEncoded
	if h.Raw() {
		read = readRaw
	}
	for p := range h.pieces(sel) {
		reads.Go(func() error {
			check, err := read(ctx, blob, h, sel, p, c, buf)
			switch {
			case err != nil:
				return err
			case c.gently:
				return check()
			}
			checks.Go(check)
			return nil
		})
	}
	reads.Go(func() error { return readFooter(ctx, blob, h) })
	err := reads.Wait()
	if damage := checks.Wait(); damage != nil {
		return damage
	}
	return err
}

// ReadsAtOnce is how many reads of a source are to be on their way at a time.
func ReadsAtOnce(src Source) int {
	if s, ok := src.(interface{ ReadsAtOnce() int }); ok {
		return s.ReadsAtOnce()
	}
	return 1
}

// pieceBytes is the least that is read at once, but for the end of a page: enough
// for a disk, and little enough to be in the processor's cache when it is checked.
// A section is never split.
const pieceBytes = 1 << 20

// piece is consecutive sections of a selection that are consecutive in the file
// as well, from first up to but not including end.
type piece struct{ first, end int }

// pieces divides the selected sections, in order.
func (h *Header) pieces(sel Selection) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		first := 0
		for i := range sel.at {
			_, size := h.span(sel, piece{first, i + 1})
			last := i == len(sel.at)-1 || sel.at[i+1] != sel.at[i]+1
			if size < pieceBytes && !last {
				continue
			}
			if !yield(piece{first, i + 1}) {
				return
			}
			first = i + 1
		}
	}
}

// span returns where a piece is in the file, the padding after its last section
// included.
func (h *Header) span(sel Selection, p piece) (off, size int64) {
	last := &h.Sections[sel.at[p.end-1]]
	off = h.Sections[sel.at[p.first]].Offset
	return off, AlignUp(last.Offset+last.Stored) - off
}

func readFooter(ctx context.Context, blob Source, h *Header) error {
	var foot [FooterBytes]byte
	if err := ReadFull(ctx, blob, foot[:], h.FileBytes-FooterBytes); err != nil {
		return err
	}
	if string(foot[:]) != string(h.footer()) {
		return Damaged("footer does not match the header")
	}
	return nil
}

// readRaw reads a piece of a payload that is exactly its part of the buffer, and
// returns how to check it.
func readRaw(ctx context.Context, blob Source, h *Header, sel Selection, p piece, _ *Codec, buf []byte) (check func() error, err error) {
	off, size := h.span(sel, p)
	at := int64(sel.offsets[p.first])
	if err := ReadFull(ctx, blob, buf[at:at+size], off); err != nil {
		return nil, err
	}
	return func() error {
		for i := p.first; i < p.end; i++ {
			if err := h.checkStored(sel.at[i], sel.Rows(buf, i), sel.Gap(buf, i)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// readEncoded reads a piece of a payload with compressed sections, and returns how
// to check and decode it, which must be called.
func readEncoded(ctx context.Context, blob Source, h *Header, sel Selection, p piece, c *Codec, buf []byte) (check func() error, err error) {
	off, size := h.span(sel, p)
	scratch := takeScratch(int(size))
	if err := ReadFull(ctx, blob, *scratch, off); err != nil {
		putScratch(scratch)
		return nil, err
	}
	return func() error {
		defer putScratch(scratch)
		for i := p.first; i < p.end; i++ {
			s := &h.Sections[sel.at[i]]
			clear(sel.Gap(buf, i))
			if err := h.decodeSection(sel.at[i], (*scratch)[s.Offset-off:], c, sel.Rows(buf, i)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// decodeSection checks section i, which stored begins with, and decodes its rows.
func (h *Header) decodeSection(i int, stored []byte, c *Codec, rows []byte) error {
	s := &h.Sections[i]
	if err := h.checkStored(i, stored[:s.Stored], stored[s.Stored:AlignUp(s.Stored)]); err != nil {
		return err
	}
	if s.Encoding == EncodingRaw {
		copy(rows, stored)
		return nil
	}
	return c.Decode(stored[:s.Stored], rows)
}

// scratch holds buffers of pieces, so that reading page after page makes no
// garbage. Larger ones than usual are not kept.
var scratch sync.Pool

func takeScratch(n int) *[]byte {
	if p, ok := scratch.Get().(*[]byte); ok && cap(*p) >= n {
		*p = (*p)[:n]
		return p
	}
	p := make([]byte, n)
	return &p
}

func putScratch(p *[]byte) {
	if cap(*p) <= 2*pieceBytes {
		scratch.Put(p)
	}
}

// checkStored verifies section i's bytes as they are in the file and the
// padding after them.
func (h *Header) checkStored(i int, stored, gap []byte) error {
	s := &h.Sections[i]
	if sum := Checksum(stored); sum != s.CRC {
		return Damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
			i, s.Group, s.Layer, s.Kind, sum, s.CRC)
	}
	if !allZero(gap) {
		return Damaged("padding after section %d is not zero", i)
	}
	return nil
}
