package pagefile

import (
	"context"
	"fmt"
	"slices"
)

// Encoded is a page file ready for writing: header, then body in order, each piece followed by
// zeros up to the next multiple of PageAlign, then footer.
type Encoded struct {
	Header *Header
	head   []byte
	body   [][]byte
	foot   []byte
}

// Encode computes the file of p, whose gaps must be clear. The body of a raw page is the payload itself.
// Compressed sections take new memory, together at most the payload's size. A nil c stores every section raw.
func Encode(fingerprint Key, pageTokens int, p *Page, c *Codec) (*Encoded, error) {
	h := &Header{
		Fingerprint: fingerprint,
		Key:         p.Key(),
		Parent:      p.Parent,
		Start:       p.Start,
		PageTokens:  pageTokens,
		Tokens:      p.Tokens,
		Media:       p.Media,
		Sections:    make([]StoredSection, len(p.Layout.sections)),
		Layout:      p.Layout,
	}
	stored := make([][]byte, len(h.Sections))
	err := eachSection(len(h.Sections), func(i int) error {
		rows := p.Layout.Rows(p.Payload, i)
		s := &h.Sections[i]
		*s = StoredSection{Section: p.Layout.sections[i], Raw: int64(len(rows))}
		stored[i] = rows
		if c != nil {
			if e, small := c.Encode(rows, s.Section); e != EncodingRaw {
				s.Encoding, stored[i] = e, small
			}
		}
		s.Stored, s.CRC = int64(len(stored[i])), Checksum(stored[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	e := encoded(h, stored)
	if h.Raw() {
		e.body = [][]byte{p.Payload}
	}
	return e, nil
}

func encoded(h *Header, body [][]byte) *Encoded {
	h.Place()
	head := h.Encode() // first: the footer has its checksum
	return &Encoded{Header: h, head: head, body: body, foot: h.footer()}
}

// zeros is the longest gap after a section.
var zeros [PageAlign]byte

// WriteTo passes the file's pieces to write, in order.
func (e *Encoded) WriteTo(write func(p []byte) error) error {
	if err := write(e.head); err != nil {
		return err
	}
	for _, piece := range e.body {
		if err := write(piece); err != nil {
			return err
		}
		if gap := AlignUp(int64(len(piece))) - int64(len(piece)); gap > 0 {
			if err := write(zeros[:gap]); err != nil {
				return err
			}
		}
	}
	return write(e.foot)
}

// Cold says how the lossy page that stands for an exact one is encoded.
type Cold struct {
	// K and V are the lossy encodings of sections of these kinds, whose rows are f16; EncodingRaw
	// keeps a kind lossless.
	K, V Encoding

	// Compress stores lossless sections in the encoding that makes them smallest. Otherwise they are raw.
	Compress bool
}

// of returns the lossy encoding of a section, EncodingRaw for none.
func (c Cold) of(s Section) Encoding {
	switch s.Kind {
	case KindK:
		return c.K
	case KindV:
		return c.V
	}
	return EncodingRaw
}

// Made reports whether a lossy page may be the result of EncodeCold with these encodings.
func (c Cold) Made(h *Header) bool {
	return h.Lossy() && !slices.ContainsFunc(h.Sections, func(s StoredSection) bool {
		return s.Encoding.Lossy() && s.Encoding != c.of(s.Section)
	})
}

// EncodeCold computes the file of the lossy page that stands for the page in blob, whose header is
// h. Only K and V become lossy, except sections that their encoding does not take. Without any
// lossy section Lossy is false of the result's header: the page is better kept as it is.
//
// Each section is read, checked and decoded once, and each lossy encoding is decoded before it
// counts. Besides the encoded sections, which together take at most h.Layout.Size() bytes,
// EncodeCold needs memory for a few pieces of the file and two sections.
//
// EncodeCold returns ErrInvalidPage for a page that is lossy already, ErrDamaged, or an error of blob.
func EncodeCold(ctx context.Context, blob Source, h *Header, c *Codec, how Cold) (*Encoded, error) {
	if h.Lossy() {
		return nil, fmt.Errorf("encode page %v: it is lossy already: %w", h.Key, ErrInvalidPage)
	}
	return encodeAgain(ctx, blob, h, c, how, ColdFingerprint(h.Fingerprint))
}

// EncodePacked computes the file of the same page as in blob, whose header is h, with each section in the lossless
// encoding that makes it smallest. Memory is that of EncodeCold.
func EncodePacked(ctx context.Context, blob Source, h *Header, c *Codec) (*Encoded, error) {
	return encodeAgain(ctx, blob, h, c, Cold{Compress: true}, h.Fingerprint)
}

func encodeAgain(ctx context.Context, blob Source, h *Header, c *Codec, how Cold, fingerprint Key) (*Encoded, error) {
	again := &Header{
		Fingerprint: fingerprint, Key: h.Key, Parent: h.Parent, Start: h.Start, PageTokens: h.PageTokens,
		Tokens: h.Tokens, Media: h.Media, Sections: make([]StoredSection, len(h.Sections)), Layout: h.Layout,
	}
	body := make([][]byte, len(h.Sections))
	err := ReadSections(ctx, blob, h, h.All(), c.Gently(), func(i int, rows []byte) error {
		id, stored, err := c.encodeCold(rows, h.Sections[i].Section, how)
		if err != nil {
			return fmt.Errorf("section %d: %w", i, err)
		}
		body[i] = stored
		again.Sections[i] = StoredSection{
			Section: h.Sections[i].Section, Encoding: id, Raw: int64(len(rows)), Stored: int64(len(stored)), CRC: Checksum(stored),
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("encode page %v: %w", h.Key, err)
	}
	return encoded(again, body), nil
}

// encodeCold encodes one section. The result does not share memory with rows.
func (c *Codec) encodeCold(rows []byte, s Section, how Cold) (Encoding, []byte, error) {
	if id := how.of(s); id.Lossy() {
		// An error is about these rows: a number that is not finite, or a length that has no blocks.
		if stored, err := c.EncodeLossy(id, rows, s); err == nil && len(stored) > 0 && len(stored) < len(rows) {
			again := takeScratch(len(rows))
			defer putScratch(again)
			return id, stored, c.Decode(id, stored, *again)
		}
	}
	if how.Compress {
		if id, stored := c.Encode(rows, s); id != EncodingRaw {
			return id, stored, nil
		}
	}
	return EncodingRaw, slices.Clone(rows), nil
}
