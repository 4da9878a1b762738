package pagefile

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// StepBytes is the largest piece in which files are copied and in which an
// isolated tier is read and written.
const StepBytes = 1 << 20

// maxWindowBytes is the largest zstd window that a Checker decodes with: the zstd
// tool's own default. Pages that Put wrote need at most a sixteenth of it.
const maxWindowBytes = 128 << 20

// Stream reads blob once from beginning to end, checks every checksum, and hands each step
// to write when that is not nil. The last step is handed on only after the whole file has
// been found good. Stream decompresses nothing: a checksum proves that compressed bytes are
// those that were written.
func Stream(ctx context.Context, blob Source, write func(step []byte) error) (*Header, error) {
	return (&Checker{write: write}).Check(ctx, blob)
}

// Checker checks whole files one after another, as Read does, compressed sections by
// decompressing them. It keeps nothing of the files, so it needs a step and one zstd window
// of memory, whatever a file claims.
type Checker struct {
	buf   []byte                  // of a step
	dec   *zstd.Decoder           // nil checks compressed sections by their checksums alone
	read  func(n int64)           // told of all bytes read; nil tells nobody
	write func(step []byte) error // gets each step that was checked; nil gets none
}

// NewChecker returns a Checker, for the caller to close. read is told of all bytes that are
// read, if it is not nil.
func NewChecker(read func(n int64)) (*Checker, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxDecodedBytes), zstd.WithDecoderMaxWindow(maxWindowBytes))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Checker{dec: dec, read: read}, nil
}

// Close frees the decoder.
func (c *Checker) Close() { c.dec.Close() }

// Check reads a file once from beginning to end and checks every byte of it. It returns
// ErrDamaged, ErrMismatch for a newer schema, or an error of the source.
func (c *Checker) Check(ctx context.Context, blob Source) (*Header, error) {
	in, err := c.open(ctx, blob)
	if err != nil {
		return nil, err
	}
	for i := range in.h.Sections {
		if err := in.section(i); err != nil {
			return nil, err
		}
	}
	if err := in.footer(); err != nil {
		return nil, err
	}
	return in.h, in.handOn()
}

// CheckSections is Check for all sections of a file: it says of each what is wrong with it,
// nil where nothing is. The error is that of the header or the footer; the result is nil
// after one of the header.
func (c *Checker) CheckSections(ctx context.Context, blob Source) (*Header, []error, error) {
	in, err := c.open(ctx, blob)
	if err != nil {
		return nil, nil, err
	}
	wrong := make([]error, len(in.h.Sections))
	for i := range in.h.Sections {
		wrong[i] = in.section(i)
	}
	return in.h, wrong, in.footer()
}

// checking is a file while a Checker reads it, step after step.
type checking struct {
	*Checker
	ctx  context.Context
	blob Source
	h    *Header

	step []byte // read last, and not handed on
	rest []byte // the part of step that was not checked
	off  int64  // where in the file rest begins
}

// open reads the header of a file, and checks it once more as part of the first step.
func (c *Checker) open(ctx context.Context, blob Source) (*checking, error) {
	h, err := ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if need := min(StepBytes, h.FileBytes); int64(len(c.buf)) < need {
		c.buf = make([]byte, need)
	}
	in := &checking{Checker: c, ctx: ctx, blob: blob, h: h}
	if err := in.expect(h.Encode()); err != nil {
		return nil, errOr(err, "header changed between two reads")
	}
	return in, nil
}

// errDiffers reports bytes other than those that expect was given.
var errDiffers = errors.New("bytes differ")

// errOr returns the damage described in place of errDiffers, and any other error as it is.
func errOr(err error, format string, args ...any) error {
	if errors.Is(err, errDiffers) {
		return Damaged(format, args...)
	}
	return err
}

// section checks one section and the padding after it. A section's checksum is compared
// before the decoder's verdict is believed.
func (in *checking) section(i int) error {
	s := &in.h.Sections[i]
	in.seek(s.Offset)
	stored := &summed{in: in, left: s.Stored}
	var decodeErr error
	if s.Encoding == EncodingZstd && in.dec != nil {
		decodeErr = in.decode(stored, s.Raw)
	}
	if err := stored.skip(); err != nil {
		return err
	}
	if stored.crc != s.CRC {
		return Damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
			i, s.Group, s.Layer, s.Kind, stored.crc, s.CRC)
	}
	if decodeErr != nil {
		return fmt.Errorf("section %d (group %d layer %d %v): %w", i, s.Group, s.Layer, s.Kind, decodeErr)
	}
	return errOr(in.expect(zeros[:AlignUp(in.off)-in.off]), "padding after section %d is not zero", i)
}

// footer checks the end of the file.
func (in *checking) footer() error {
	in.seek(in.h.FileBytes - FooterBytes)
	return errOr(in.expect(in.h.footer()), "footer does not match the header")
}

// expect returns errDiffers unless the file goes on with want.
func (in *checking) expect(want []byte) error {
	for len(want) > 0 {
		p, err := in.take(int64(len(want)))
		if err != nil {
			return err
		}
		if string(p) != string(want[:len(p)]) {
			return errDiffers
		}
		want = want[len(p):]
	}
	return nil
}

// seek goes to an offset, which is where the file goes on unless a section before it was
// damaged.
func (in *checking) seek(off int64) {
	if skip := off - in.off; skip >= 0 && skip <= int64(len(in.rest)) {
		in.rest = in.rest[skip:]
	} else {
		in.step, in.rest = nil, nil
	}
	in.off = off
}

// take returns the next bytes of the file, at least one and at most n, of one step.
func (in *checking) take(n int64) ([]byte, error) {
	if len(in.rest) == 0 {
		if err := in.nextStep(); err != nil {
			return nil, err
		}
	}
	p := in.rest[:min(n, int64(len(in.rest)))]
	in.rest = in.rest[len(p):]
	in.off += int64(len(p))
	return p, nil
}

// nextStep hands the last step on and reads another one.
func (in *checking) nextStep() error {
	if err := in.handOn(); err != nil {
		return err
	}
	step := in.buf[:min(StepBytes, in.h.FileBytes-in.off)]
	if err := ReadFull(in.ctx, in.blob, step, in.off); err != nil {
		return err
	}
	if in.read != nil {
		in.read(int64(len(step)))
	}
	in.step, in.rest = step, step
	return nil
}

// handOn gives the step that was checked to the writer.
func (in *checking) handOn() error {
	if in.write == nil || len(in.step) == 0 {
		return nil
	}
	return in.write(in.step)
}

// decode reads a compressed section to its end and checks that it gives raw bytes.
func (in *checking) decode(stored *summed, raw int64) error {
	if err := in.dec.Reset(stored); err != nil {
		return fmt.Errorf("reset zstd decoder: %w", err)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(in.dec, raw+1))
	switch {
	case stored.err != nil:
		return stored.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		// Nothing that a store wrote; but a reader with more memory may well
		// find it good.
		return fmt.Errorf("decompressing needs more than %d MiB, so it cannot be checked", maxWindowBytes>>20)
	case err != nil:
		return Damaged("decompress: %v", err)
	case n != raw:
		return Damaged("decompressing gives %d bytes or more, want %d", n, raw)
	}
	return nil
}

// summed reads the stored bytes of one section in order and sums them up.
type summed struct {
	in   *checking
	left int64
	crc  uint32
	err  error // of the source
}

// take returns the next bytes of the section, at most n, and io.EOF at its end.
func (r *summed) take(n int64) ([]byte, error) {
	if r.left == 0 && r.err == nil {
		return nil, io.EOF
	}
	if r.err != nil {
		return nil, r.err
	}
	var p []byte
	if p, r.err = r.in.take(min(n, r.left)); r.err != nil {
		return nil, r.err
	}
	r.crc = crc32.Update(r.crc, castagnoli, p)
	r.left -= int64(len(p))
	return p, nil
}

// Read implements io.Reader for a decoder.
func (r *summed) Read(p []byte) (int, error) {
	got, err := r.take(int64(len(p)))
	return copy(p, got), err
}

// skip reads the section to its end.
func (r *summed) skip() error {
	for {
		if _, err := r.take(r.left); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
