package diskstore

import (
	"context"
	"errors"
	"io"
	"slices"
)

// firstReadBytes is how much of a file is read to learn the header's size. It
// holds the whole header of a usual page: 256 tokens and 64 sections.
const firstReadBytes = 4096

// readHeader reads and checks the header region of blob.
func readHeader(ctx context.Context, blob Blob) (*Header, error) {
	fileBytes := blob.Info().Bytes
	region := make([]byte, min(firstReadBytes, fileBytes))
	if err := readFull(ctx, blob, region, 0); err != nil {
		return nil, err
	}
	size, err := headerSize(region, fileBytes)
	if err != nil {
		return nil, err
	}
	if have := int64(len(region)); size > have {
		region = append(region, make([]byte, size-have)...)
		if err := readFull(ctx, blob, region[have:], have); err != nil {
			return nil, err
		}
	}
	return decodeHeader(region[:size], fileBytes)
}

// readFull is Blob.ReadAt with the end of the file as damage.
func readFull(ctx context.Context, blob Blob, p []byte, off int64) error {
	err := blob.ReadAt(ctx, p, off)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("file ends before byte %d", off+int64(len(p)))
	}
	return err
}

// misplaced marks the ErrMismatch of a well-formed page in another page's place.
type misplaced struct{ error }

func (m *misplaced) Unwrap() error { return m.error }

// checkName returns ErrMismatch, as misplaced, unless h belongs at name.
func (h *Header) checkName(name Name) error {
	if err := h.compareName(name); err != nil {
		return &misplaced{err}
	}
	return nil
}

func (h *Header) compareName(name Name) error {
	switch {
	case h.Fingerprint != name.Fingerprint:
		return mismatch("fingerprint in file is %v, want %v", h.Fingerprint, name.Fingerprint)
	case h.Key != name.Key:
		return mismatch("key in file is %v, want %v", h.Key, name.Key)
	case h.Tail() != (name.Class == ClassTail):
		return mismatch("page of %d of %d tokens is stored as tail: %t", len(h.Tokens), h.PageTokens, name.Class == ClassTail)
	case name.Class == ClassTail && h.Parent != name.Parent:
		return mismatch("parent in file is %v, want %v", h.Parent, name.Parent)
	}
	return nil
}

// checkWanted returns ErrMismatch unless h is the page a caller of Read
// describes.
func (h *Header) checkWanted(ref Ref, pageTokens int, tokens []int32, layout Layout) error {
	switch {
	case h.Parent != ref.Parent:
		return mismatch("parent is %v, want %v", h.Parent, ref.Parent)
	case h.Start != ref.Start:
		return mismatch("page starts at token %d, want %d", h.Start, ref.Start)
	case h.PageTokens != pageTokens:
		return mismatch("page size is %d tokens, want %d", h.PageTokens, pageTokens)
	case len(h.Tokens) != ref.Stored:
		return mismatch("page has %d tokens, want %d", len(h.Tokens), ref.Stored)
	case !slices.Equal(h.Tokens[:len(tokens)], tokens):
		return mismatch("tokens differ")
	case !h.layout.Equal(layout):
		return mismatch("sections differ")
	}
	return nil
}

// readPayload reads every section of the page into buf, which is
// h.Layout().Size() bytes, and checks every byte of the file after the header.
// Besides buf it uses at most as much memory as the payload takes in the file.
func readPayload(ctx context.Context, blob Blob, h *Header, c *codec, buf []byte) error {
	var err error
	if h.raw() {
		err = readRaw(ctx, blob, h, buf)
	} else {
		err = readEncoded(ctx, blob, h, c, buf)
	}
	if err != nil {
		return err
	}
	foot := make([]byte, footerBytes)
	if err := readFull(ctx, blob, foot, h.FileBytes-footerBytes); err != nil {
		return err
	}
	if string(foot) != string(h.footer()) {
		return damaged("footer does not match the header")
	}
	return nil
}

// readRaw reads a payload that is exactly the buffer, with one large read.
func readRaw(ctx context.Context, blob Blob, h *Header, buf []byte) error {
	if err := readFull(ctx, blob, buf, h.payloadOffset()); err != nil {
		return err
	}
	return eachSection(len(h.Sections), func(i int) error {
		return h.checkStored(i, h.layout.Rows(buf, i), h.layout.gap(buf, i))
	})
}

// readEncoded reads a payload with compressed sections one section at a time.
func readEncoded(ctx context.Context, blob Blob, h *Header, c *codec, buf []byte) error {
	return eachSection(len(h.Sections), func(i int) error {
		s := &h.Sections[i]
		stored := make([]byte, alignUp(s.Stored))
		if err := readFull(ctx, blob, stored, s.Offset); err != nil {
			return err
		}
		if err := h.checkStored(i, stored[:s.Stored], stored[s.Stored:]); err != nil {
			return err
		}
		clear(h.layout.gap(buf, i))
		rows := h.layout.Rows(buf, i)
		if s.Encoding == EncodingRaw {
			copy(rows, stored)
			return nil
		}
		return c.decode(stored[:s.Stored], rows)
	})
}

// checkStored verifies section i's bytes as they are in the file and the
// padding after them.
func (h *Header) checkStored(i int, stored, gap []byte) error {
	s := &h.Sections[i]
	if sum := checksum(stored); sum != s.CRC {
		return damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
			i, s.Group, s.Layer, s.Kind, sum, s.CRC)
	}
	if !allZero(gap) {
		return damaged("padding after section %d is not zero", i)
	}
	return nil
}
