package pagefile

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

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
// with the checks of ReadSections. After ReadPayload has returned, no goroutine writes to buf.
func ReadPayload(ctx context.Context, blob Source, h *Header, sel Selection, c *Codec, buf []byte) error {
	return readAll(ctx, blob, h, sel, c, func(i int, encoding Encoding, stored []byte) error {
		clear(sel.Gap(buf, i))
		if encoding == EncodingRaw {
			copy(sel.Rows(buf, i), stored)
			return nil
		}
		return c.Decode(encoding, stored, sel.Rows(buf, i))
	})
}

// ReadSections reads the selected sections of a page and passes the rows of each, by its index in the
// selection, to use: once the section and the padding after it are checked, in any order, and several
// at the same time. use does not keep rows. The page is good only if ReadSections returns nil: a later
// section or the footer may be damaged. After ReadSections has returned, use is not called.
//
// Pieces are read one after another, so that the system sees a sequence and reads ahead; several are
// read at the same time only if each waits for a network. Meanwhile others are checked, decoded and
// used, each by the goroutine that read it and whose processor has it in its cache. ReadSections needs
// memory for a few pieces, and for the rows of a few compressed sections. With a codec for gentle reads
// it runs on the calling goroutine, unless the source waits for a network.
func ReadSections(ctx context.Context, blob Source, h *Header, sel Selection, c *Codec, use func(i int, rows []byte) error) error {
	return readAll(ctx, blob, h, sel, c, func(i int, encoding Encoding, stored []byte) error {
		if encoding == EncodingRaw {
			return use(i, stored)
		}
		rows := takeScratch(sel.end(i) - sel.offsets[i])
		defer putScratch(rows)
		if err := c.Decode(encoding, stored, *rows); err != nil {
			return err
		}
		return use(i, *rows)
	})
}

// piecesAtOnce bounds the pieces of a page that are in memory, unless more are read at once.
const piecesAtOnce = 4

// sectionReader is the state of one ReadSections or ReadPayload.
type sectionReader struct {
	blob Source
	h    *Header
	sel  Selection
	// pass decodes the stored bytes of section i, which are checked, and passes its rows on.
	pass func(i int, encoding Encoding, stored []byte) error

	pieces []piece
	turns  chan struct{} // one element per running read
	taken  atomic.Int64  // pieces that a goroutine has begun to read; the footer is behind the last
	damage damage
}

// damage is the first damaged part of a page, by its place: two reads of one damaged file report the same.
type damage struct {
	found atomic.Bool
	mu    sync.Mutex
	piece int
	err   error
}

func (d *damage) add(piece int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || piece < d.piece {
		d.piece, d.err = piece, err
	}
	d.found.Store(true)
}

// readAll reads all pieces and the footer, and passes each section to pass.
func readAll(ctx context.Context, blob Source, h *Header, sel Selection, c *Codec, pass func(i int, encoding Encoding, stored []byte) error) error {
	atOnce := ReadsAtOnce(blob)
	r := &sectionReader{
		blob: blob, h: h, sel: sel, pass: pass,
		pieces: h.pieces(sel), turns: make(chan struct{}, atOnce),
	}
	workers := min(max(atOnce, runtime.GOMAXPROCS(0)), max(atOnce, piecesAtOnce), len(r.pieces)+1)
	if c.gently {
		workers = min(atOnce, len(r.pieces)+1)
	}
	if workers == 1 {
		return cmp.Or(r.run(ctx), r.damage.err)
	}
	group, ctx := errgroup.WithContext(ctx) // ctx ends with the first error, and not with damage
	for range workers {
		group.Go(func() error { return r.run(ctx) })
	}
	return cmp.Or(group.Wait(), r.damage.err)
}

// run reads and uses pieces until all are taken or one is damaged. Those taken before it are finished.
func (r *sectionReader) run(ctx context.Context) error {
	for {
		r.turns <- struct{}{}
		i := int(r.taken.Add(1)) - 1
		if i > len(r.pieces) || ctx.Err() != nil || r.damage.found.Load() {
			<-r.turns
			return ctx.Err()
		}
		if err := r.take(ctx, i); errors.Is(err, ErrDamaged) {
			r.damage.add(i, err)
		} else if err != nil {
			return err
		}
	}
}

// take reads and uses piece i, or the footer behind the last, and gives back the turn to read.
func (r *sectionReader) take(ctx context.Context, i int) error {
	if i == len(r.pieces) {
		defer func() { <-r.turns }()
		return readFooter(ctx, r.blob, r.h)
	}
	bytes, err := r.read(ctx, r.pieces[i])
	<-r.turns
	if err != nil {
		return err
	}
	defer putScratch(bytes)
	return r.usePiece(r.pieces[i], *bytes)
}

// read reads a piece of the file. The caller puts the result back.
func (r *sectionReader) read(ctx context.Context, p piece) (*[]byte, error) {
	off, size := r.h.span(r.sel, p)
	bytes := takeScratch(int(size))
	if err := ReadFull(ctx, r.blob, *bytes, off); err != nil {
		putScratch(bytes)
		return nil, err
	}
	return bytes, nil
}

// usePiece checks the sections of a piece and passes them on.
func (r *sectionReader) usePiece(p piece, bytes []byte) error {
	off, _ := r.h.span(r.sel, p)
	for i := p.first; i < p.end; i++ {
		at := r.sel.at[i]
		s := &r.h.Sections[at]
		stored := bytes[s.Offset-off:]
		if err := r.h.checkStored(at, stored[:s.Stored], stored[s.Stored:AlignUp(s.Stored)]); err != nil {
			return err
		}
		if err := r.pass(i, s.Encoding, stored[:s.Stored:s.Stored]); err != nil {
			return err
		}
	}
	return nil
}

// ReadsAtOnce returns the number of reads of a source to run at the same time.
func ReadsAtOnce(src Source) int {
	if s, ok := src.(interface{ ReadsAtOnce() int }); ok {
		return s.ReadsAtOnce()
	}
	return 1
}

// pieceBytes is the least size of one read, except at the end of a page: enough for a disk, and small
// enough to be in the processor's cache when the piece is checked. A section is never split.
const pieceBytes = 1 << 20

// piece is a range of a selection's sections, [first, end), that are consecutive in the file as well.
type piece struct{ first, end int }

// pieces divides the selected sections, in order.
func (h *Header) pieces(sel Selection) (pieces []piece) {
	first := 0
	for i := range sel.at {
		_, size := h.span(sel, piece{first, i + 1})
		last := i == len(sel.at)-1 || sel.at[i+1] != sel.at[i]+1
		if size >= pieceBytes || last {
			pieces = append(pieces, piece{first, i + 1})
			first = i + 1
		}
	}
	return pieces
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
	if err := h.checkSum(i, Checksum(stored)); err != nil {
		return err
	}
	if !allZero(gap) {
		return Damaged("padding after section %d is not zero", i)
	}
	return nil
}

// checkSum compares the checksum of section i's stored bytes.
func (h *Header) checkSum(i int, sum uint32) error {
	s := &h.Sections[i]
	if sum != s.CRC {
		return Damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x", i, s.Group, s.Layer, s.Kind, sum, s.CRC)
	}
	return nil
}
