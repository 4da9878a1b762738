package pagefile

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/kvtier/kvtier/diskstore/encoding"
)

// StepBytes is the size of the largest piece in which files are copied and in which an
// isolated tier is read and written.
const StepBytes = 1 << 20

// maxWindowBytes is the largest zstd window with which a Checker decodes: the default of the
// zstd tool. Pages written by Put need at most a sixteenth of these bytes.
const maxWindowBytes = 128 << 20

// Stream reads blob once from beginning to end, checks every checksum, and passes each step to write
// unless write is nil. Stream passes the last step only after the whole file was found good. Stream
// decompresses nothing: checksums prove that compressed bytes are the bytes that were written.
func Stream(ctx context.Context, blob Source, write func(step []byte) error) (*Header, error) {
	return (&Checker{write: write}).Check(ctx, blob)
}

// Checker checks whole files one after another, with the checks that Read makes; compressed
// sections are checked by decompressing. A Checker keeps nothing of a file and needs memory
// for one step and one zstd window, for any file.
type Checker struct {
	buf   []byte                  // for one step
	dec   *zstd.Decoder           // nil checks compressed sections by their checksums alone
	read  func(n int64)           // receives the number of bytes of each read; may be nil
	write func(step []byte) error // receives each checked step; may be nil
}

// NewChecker returns a Checker. The caller closes the Checker. read, unless nil, receives the
// number of bytes of each read.
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

// Check reads a file once from beginning to end and checks every byte. Check returns
// ErrDamaged, ErrMismatch for a newer schema, or an error of the source.
func (c *Checker) Check(ctx context.Context, blob Source) (*Header, error) {
	in, err := c.open(ctx, blob)
	if err != nil {
		return nil, err
	}
	in.end = in.h.FileBytes
	if err := in.header(); err != nil {
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

// CheckSections does as Check and returns the damage of each section, nil for a good section.
// The last result is an error of the header or the footer; after an error of the header the
// other results are nil. No read crosses the border of a section, so that bytes that cannot be
// read are those of the section which they belong to.
func (c *Checker) CheckSections(ctx context.Context, blob Source) (*Header, []error, error) {
	in, err := c.open(ctx, blob)
	if err != nil {
		return nil, nil, err
	}
	in.end = in.h.payloadOffset()
	if err := in.header(); err != nil {
		return nil, nil, err
	}
	wrong := make([]error, len(in.h.Sections))
	for i := range in.h.Sections {
		s := &in.h.Sections[i]
		in.end = AlignUp(s.Offset + s.Stored)
		wrong[i] = in.section(i)
	}
	in.end = in.h.FileBytes
	return in.h, wrong, in.footer()
}

// checking is the state of one file that a Checker reads, step after step.
type checking struct {
	*Checker
	ctx  context.Context
	blob Source
	h    *Header

	step []byte // the newest step, not yet passed to write
	rest []byte // the part of step that is not checked yet
	off  int64  // offset of rest in the file
	end  int64  // offset in the file at which the next step ends at the latest
}

func (c *Checker) open(ctx context.Context, blob Source) (*checking, error) {
	h, err := ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if need := min(StepBytes, h.FileBytes); int64(len(c.buf)) < need {
		c.buf = make([]byte, need)
	}
	return &checking{Checker: c, ctx: ctx, blob: blob, h: h}, nil
}

// errDiffers reports bytes that differ from the bytes given to expect.
var errDiffers = errors.New("bytes differ")

// errOr returns the described damage in place of errDiffers, and every other error unchanged.
func errOr(err error, format string, args ...any) error {
	if errors.Is(err, errDiffers) {
		return Damaged(format, args...)
	}
	return err
}

// header checks the header again, as part of the first step.
func (in *checking) header() error {
	return errOr(in.expect(in.h.Encode()), "header changed between two reads")
}

// section checks one section and the padding after the section. The checksum decides before
// the decoder's result does.
func (in *checking) section(i int) error {
	s := &in.h.Sections[i]
	in.seek(s.Offset)
	stored := &summed{in: in, left: s.Stored}
	var decodeErr error
	if s.Encoding != EncodingRaw && in.dec != nil {
		decodeErr = in.decode(s.Encoding, stored, s.Raw)
	}
	if err := stored.skip(); err != nil {
		return err
	}
	if err := in.h.checkSum(i, stored.crc); err != nil {
		return err
	}
	if decodeErr != nil {
		return fmt.Errorf("section %d (group %d layer %d %v): %w", i, s.Group, s.Layer, s.Kind, decodeErr)
	}
	return errOr(in.expect(zeros[:AlignUp(in.off)-in.off]), "padding after section %d is not zero", i)
}

func (in *checking) footer() error {
	in.seek(in.h.FileBytes - FooterBytes)
	return errOr(in.expect(in.h.footer()), "footer does not match the header")
}

// expect returns errDiffers unless the next bytes of the file are want.
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

// seek moves to an offset. The file already is at that offset unless an earlier section was damaged.
func (in *checking) seek(off int64) {
	if skip := off - in.off; skip >= 0 && skip <= int64(len(in.rest)) {
		in.rest = in.rest[skip:]
	} else {
		in.step, in.rest = nil, nil
	}
	in.off = off
}

// take returns the next bytes of the file, at least one and at most n, all of one step.
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

// nextStep passes the current step to write and reads the next one.
func (in *checking) nextStep() error {
	if err := in.handOn(); err != nil {
		return err
	}
	step := in.buf[:min(StepBytes, in.end-in.off)]
	if err := ReadFull(in.ctx, in.blob, step, in.off); err != nil {
		return err
	}
	if in.read != nil {
		in.read(int64(len(step)))
	}
	in.step, in.rest = step, step
	return nil
}

// handOn passes the checked step to write.
func (in *checking) handOn() error {
	if in.write == nil || len(in.step) == 0 {
		return nil
	}
	return in.write(in.step)
}

// decode reads a compressed section to its end and checks that it decompresses to raw bytes.
func (in *checking) decode(e Encoding, stored *summed, raw int64) error {
	if e == EncodingZstd {
		return in.decompress(stored, raw)
	}
	err := encoding.Check(e, stored, raw)
	switch {
	case stored.err != nil:
		return stored.err
	case err != nil:
		return Damaged("%v", err)
	case stored.left > 0:
		return Damaged("%d bytes are left behind %d decoded ones", stored.left, raw)
	}
	return nil
}

func (in *checking) decompress(stored *summed, raw int64) error {
	if err := in.dec.Reset(stored); err != nil {
		return fmt.Errorf("reset zstd decoder: %w", err)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(in.dec, raw+1))
	switch {
	case stored.err != nil:
		return stored.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		// No store writes such a section, but a reader with more memory may find it good.
		return fmt.Errorf("decompressing needs more than %d MiB, so it cannot be checked", maxWindowBytes>>20)
	case err != nil:
		return Damaged("decompress: %v", err)
	case n != raw:
		return Damaged("decompressing gives %d bytes or more, want %d", n, raw)
	}
	return nil
}

// summed reads the stored bytes of one section in order and computes their checksum.
type summed struct {
	in   *checking
	left int64
	crc  uint32
	err  error // of the source
}

// take returns the next bytes of the section, at most n, and io.EOF at the section's end.
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

func (r *summed) skip() error {
	for {
		if _, err := r.take(r.left); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
