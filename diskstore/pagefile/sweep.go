package pagefile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindowBytes is the largest zstd window that a sweep decodes with: what the
// zstd tool accepts when it is told nothing. Pages that Put wrote need at most
// a sixteenth of it.
const maxWindowBytes = 128 << 20

// Sweeper checks whole files as Read does, one after another, decompressing
// what is compressed. It needs a few steps and one zstd window of memory,
// whatever a file claims, because it keeps nothing of what it has checked.
type Sweeper struct {
	buf  []byte
	in   *bufio.Reader
	dec  *zstd.Decoder
	read func(n int64) // told of all bytes read; nil tells nobody
}

func NewSweeper(read func(n int64)) (*Sweeper, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxDecodedBytes), zstd.WithDecoderMaxWindow(maxWindowBytes))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	if read == nil {
		read = func(int64) {}
	}
	return &Sweeper{buf: make([]byte, StepBytes), in: bufio.NewReaderSize(nil, StepBytes), dec: dec, read: read}, nil
}

func (s *Sweeper) Close() { s.dec.Close() }

// Sweep reads a page once from beginning to end and checks every byte of it. It
// returns ErrDamaged, ErrMismatch for a newer schema, or an error of the tier.
func (s *Sweeper) Sweep(ctx context.Context, blob Source) (*Header, error) {
	h, err := ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	s.read(h.payloadOffset())
	for i := range h.Sections {
		if err := s.Section(ctx, blob, h, i); err != nil {
			return nil, err
		}
	}
	return h, s.Footer(ctx, blob, h)
}

func (s *Sweeper) Footer(ctx context.Context, blob Source, h *Header) error {
	foot := s.buf[:FooterBytes]
	if err := ReadFull(ctx, blob, foot, h.FileBytes-FooterBytes); err != nil {
		return err
	}
	if string(foot) != string(h.Footer()) {
		return Damaged("footer does not match the header")
	}
	s.read(FooterBytes)
	return nil
}

// Section checks one section and the padding after it. Its checksum is compared
// before what the decoder found is believed.
func (s *Sweeper) Section(ctx context.Context, blob Source, h *Header, i int) error {
	sec := &h.Sections[i]
	in := &storedReader{ctx: ctx, blob: blob, off: sec.Offset, end: sec.Offset + sec.Stored, read: s.read}
	var decodeErr error
	if sec.Encoding == EncodingZstd {
		decodeErr = s.decode(in, sec.Raw)
	}
	if _, err := s.drain(in, sec.Stored); err != nil {
		return err
	}
	if in.crc != sec.CRC {
		return Damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
			i, sec.Group, sec.Layer, sec.Kind, in.crc, sec.CRC)
	}
	if decodeErr != nil {
		return fmt.Errorf("section %d (group %d layer %d %v): %w", i, sec.Group, sec.Layer, sec.Kind, decodeErr)
	}
	gap := s.buf[:AlignUp(in.end)-in.end]
	if err := ReadFull(ctx, blob, gap, in.end); err != nil {
		return err
	}
	if !allZero(gap) {
		return Damaged("padding after section %d is not zero", i)
	}
	s.read(int64(len(gap)))
	return nil
}

// decode reads a compressed section to its end and checks that it gives raw
// bytes.
func (s *Sweeper) decode(in *storedReader, raw int64) error {
	s.in.Reset(in)
	if err := s.dec.Reset(s.in); err != nil {
		return fmt.Errorf("reset zstd decoder: %w", err)
	}
	n, err := s.drain(s.dec, raw)
	switch {
	case in.err != nil:
		return in.err
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

// drain reads r to its end, or a step beyond limit bytes, and returns how much
// there was.
func (s *Sweeper) drain(r io.Reader, limit int64) (int64, error) {
	var n int64
	for n <= limit {
		m, err := r.Read(s.buf)
		n += int64(m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// storedReader reads the stored bytes of one section in order and sums them up.
type storedReader struct {
	ctx      context.Context
	blob     Source
	off, end int64
	crc      uint32
	err      error // of the tier
	read     func(n int64)
}

func (r *storedReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	p = p[:min(int64(len(p)), r.end-r.off)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	if r.err = ReadFull(r.ctx, r.blob, p, r.off); r.err != nil {
		return 0, r.err
	}
	r.crc = crc32.Update(r.crc, castagnoli, p)
	r.off += int64(len(p))
	r.read(int64(len(p)))
	return len(p), nil
}
