package pagefile

import (
	"bytes"
	"fmt"
	"math"
)

// Page is the argument of Put: the rows of len(Tokens) consecutive tokens.
type Page struct {
	Parent  Key     // key of the previous page; the fingerprint for the first page
	Start   uint32  // position of the first token; a multiple of Options.PageTokens
	Tokens  []int32 // Options.PageTokens tokens, or fewer for a tail
	Media   []Media // in order of Offset, which counts from the page's first token
	Layout  Layout  // of len(Tokens) tokens
	Payload []byte  // Layout.Size() bytes; Put clears the gaps between sections
}

// Key returns the page's chain key.
func (p *Page) Key() Key { return ChainKey(p.Parent, p.Tokens, p.Media) }

// Check returns ErrInvalidPage when p cannot be stored among pages of pageTokens tokens.
func (p *Page) Check(pageTokens int) error {
	switch n := len(p.Tokens); {
	case n < 1 || n > pageTokens:
		return fmt.Errorf("put page: %d tokens, want 1 to %d: %w", n, pageTokens, ErrInvalidPage)
	case p.Start%uint32(pageTokens) != 0 || uint64(p.Start)+uint64(n) > math.MaxUint32:
		return fmt.Errorf("put page: start %d is not a page boundary: %w", p.Start, ErrInvalidPage)
	case p.Layout.Tokens() != n:
		return fmt.Errorf("put page: layout is for %d tokens, page has %d: %w", p.Layout.Tokens(), n, ErrInvalidPage)
	case len(p.Payload) != p.Layout.Size():
		return fmt.Errorf("put page: payload is %d bytes, layout needs %d: %w", len(p.Payload), p.Layout.Size(), ErrInvalidPage)
	}
	return checkMedia(p.Media, len(p.Tokens))
}

// checkMedia returns ErrInvalidPage unless media is ordered and inside a page of the given number of tokens.
func checkMedia(media []Media, tokens int) error {
	if len(media) > MaxMedia {
		return fmt.Errorf("page has %d media items, at most %d fit: %w", len(media), MaxMedia, ErrInvalidPage)
	}
	for i, m := range media {
		if int64(m.Offset) >= int64(tokens) || i > 0 && m.Offset < media[i-1].Offset {
			return fmt.Errorf("media item %d at offset %d is out of order or outside the page's %d tokens: %w",
				i, m.Offset, tokens, ErrInvalidPage)
		}
	}
	return nil
}

// ClearGaps zeroes the padding of the page's payload. Staging buffers are reused, and bytes
// that an earlier page left between sections must not be written to disk.
func (p *Page) ClearGaps() {
	for i := range p.Layout.sections {
		gap := p.Layout.Gap(p.Payload, i)
		if !allZero(gap) {
			clear(gap)
		}
	}
}

func allZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if !bytes.Equal(p[:n], zeros[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}
