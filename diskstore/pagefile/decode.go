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

	// ReadAt fills p from offset off, or returns io.EOF or io.ErrUnexpectedEOF when the file
	// ends first. After an error p is undefined, and ReadAt no longer writes to p.
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// firstReadBytes is the size of the first read of a file, which gives the header's size. The
// first read holds the whole header of a usual page: 256 tokens and 64 sections.
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

// ReadFull calls Source.ReadAt, and returns the end of the file as damage.
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

// CheckName returns ErrMismatch, as Misplaced, unless h belongs at name.
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

// Selection is the part of a page that is read: the sections of a layout, and their indexes
// among the page's sections.
type Selection struct {
	Layout
	at []int
}

// Select returns the selection of a layout's sections, and false for a page without all of
// these sections in that order.
func (h *Header) Select(l Layout) (Selection, bool) {
	at, ok := l.Within(h.Layout)
	return Selection{l, at}, ok
}

// All selects every section of the page.
func (h *Header) All() Selection {
	sel, _ := h.Select(h.Layout)
	return sel
}

// ReadPayload reads the selected sections of a page into buf, of the selection's Size() bytes,
// and checks the sections, the padding after each and the footer. Besides buf, ReadPayload
// uses at most as much memory as the sections take in the file. After ReadPayload has
// returned, no goroutine writes to buf.
//
// Pieces are read one after another, so that the system sees a sequence and reads ahead;
// several are read at the same time only if each waits for a network. Meanwhile pieces are
// checked and decoded, on all processors unless c is for gentle reads.
func ReadPayload(ctx context.Context, blob Source, h *Header, sel Selection, c *Codec, buf []byte) error {
	checks, ctx := errgroup.WithContext(ctx) // ctx ends with the first damage
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

// ReadsAtOnce returns the number of reads of a source to run at the same time.
func ReadsAtOnce(src Source) int {
	if s, ok := src.(interface{ ReadsAtOnce() int }); ok {
		return s.ReadsAtOnce()
	}
	return 1
}

// pieceBytes is the least size of one read, except at the end of a page: enough for a disk,
// and small enough to be in the processor's cache when the piece is checked. A section is
// never split.
const pieceBytes = 1 << 20

// piece is a range of a selection's sections, [first, end), that are consecutive in the file
// as well.
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

// span returns the range of a piece in the file, including the padding after its last section.
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

// readRaw reads a piece of a payload into its part of the buffer, where the bytes are equal,
// and returns the function that checks the piece.
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

// readEncoded reads a piece of a payload with compressed sections, and returns the function
// that checks and decodes the piece. The caller must call that function.
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

// decodeSection checks section i, with which stored begins, and decodes its rows.
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

// scratch holds buffers of pieces, so that reading many pages makes no garbage. Buffers larger
// than usual are not kept.
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

// checkStored checks section i's stored bytes and the padding after them.
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
