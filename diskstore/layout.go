package diskstore

import (
	"fmt"
	"slices"
)

// Kind says which half of a layer's cache a section holds.
type Kind uint8

const (
	KindK Kind = 0
	KindV Kind = 1
)

// String returns "K", "V" or the number of an unknown kind.
func (k Kind) String() string {
	switch k {
	case KindK:
		return "K"
	case KindV:
		return "V"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Section is one layer's keys or values: rows of RowBytes bytes, one a token.
type Section struct {
	Group, Layer uint16
	Kind         Kind
	RowBytes     uint32 // bytes per token
}

// Limits on a page. They are far above any real model and keep every size
// computed from them inside an int64.
const (
	// PageAlign is the alignment, in bytes, of sections in memory and on disk.
	PageAlign = 4096

	maxTokens      = 1 << 16 // tokens per page
	maxSections    = 1 << 13 // sections per page
	maxMedia       = 1 << 12 // media items per page
	maxRowBytes    = 1 << 24 // bytes per token and section
	maxLayoutBytes = 1 << 36 // bytes of all sections with their padding
)

// Layout places a page's sections in one contiguous buffer: section i holds
// tokens × RowBytes bytes at an offset that is a multiple of PageAlign, in the
// order given. Bytes between sections are zero on disk.
//
// The zero Layout has no sections and fits no page.
type Layout struct {
	sections []Section
	offsets  []int // of each section; len(sections)+1 entries, the last is Size
	tokens   int
}

// NewLayout lays out sections for a page of the given number of tokens. It
// returns ErrInvalidPage when a size is zero or beyond the limits above, a kind
// is unknown, or two sections share group, layer and kind.
func NewLayout(sections []Section, tokens int) (Layout, error) {
	if tokens < 1 || tokens > maxTokens {
		return Layout{}, fmt.Errorf("lay out page of %d tokens: want 1 to %d: %w", tokens, maxTokens, ErrInvalidPage)
	}
	if len(sections) < 1 || len(sections) > maxSections {
		return Layout{}, fmt.Errorf("lay out page of %d sections: want 1 to %d: %w", len(sections), maxSections, ErrInvalidPage)
	}
	l := Layout{sections: slices.Clone(sections), offsets: make([]int, 0, len(sections)+1), tokens: tokens}
	seen := make(map[Section]bool, len(sections))
	var end int64
	for i, s := range sections {
		id := Section{Group: s.Group, Layer: s.Layer, Kind: s.Kind}
		if s.Kind > KindV || s.RowBytes < 1 || s.RowBytes > maxRowBytes || seen[id] {
			return Layout{}, fmt.Errorf("lay out section %d (group %d layer %d %v, %d bytes per row): %w",
				i, s.Group, s.Layer, s.Kind, s.RowBytes, ErrInvalidPage)
		}
		seen[id] = true
		l.offsets = append(l.offsets, int(end))
		end = alignUp(end + int64(tokens)*int64(s.RowBytes))
		if end > maxLayoutBytes || end != int64(int(end)) {
			return Layout{}, fmt.Errorf("lay out page: sections need more than %d bytes: %w", int64(maxLayoutBytes), ErrInvalidPage)
		}
	}
	l.offsets = append(l.offsets, int(end))
	return l, nil
}

// Size returns the bytes of the whole buffer, a multiple of PageAlign.
func (l Layout) Size() int {
	if len(l.offsets) == 0 {
		return 0
	}
	return l.offsets[len(l.offsets)-1]
}

// Sections returns a copy of the sections, in buffer order.
func (l Layout) Sections() []Section { return slices.Clone(l.sections) }

// Tokens returns the number of rows in each section.
func (l Layout) Tokens() int { return l.tokens }

// Rows returns section i's rows inside buf, tokens × RowBytes bytes. It panics
// when buf is shorter than Size or there is no section i.
func (l Layout) Rows(buf []byte, i int) []byte {
	start := l.offsets[i]
	end := start + l.tokens*int(l.sections[i].RowBytes)
	return buf[start:end:end]
}

// gap returns the padding after section i inside buf.
func (l Layout) gap(buf []byte, i int) []byte {
	return buf[l.offsets[i]+l.tokens*int(l.sections[i].RowBytes) : l.offsets[i+1]]
}

// Equal reports whether both layouts hold the same sections and tokens.
func (l Layout) Equal(o Layout) bool {
	return l.tokens == o.tokens && slices.Equal(l.sections, o.sections)
}

// alignUp rounds n up to a multiple of PageAlign.
func alignUp(n int64) int64 { return (n + PageAlign - 1) &^ (PageAlign - 1) }
