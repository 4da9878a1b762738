package pagefile

import (
	"fmt"
	"slices"
)

// Kind is the kind of a layer's cache data that a section holds.
type Kind uint8

const (
	KindK     Kind = 0
	KindV     Kind = 1
	KindConv  Kind = 2 // state of a convolution after the page's last token
	KindState Kind = 3 // recurrent state after the page's last token
	KindCell  Kind = 4 // the cell of each token's rows, uint32 LE, in a cache that reuses cells

	// The rows that a cache with a window holds after the page's last token, oldest first.
	KindWindowK Kind = 5
	KindWindowV Kind = 6
)

const lastKind = KindWindowV

// String returns "K", "V", "conv", "state", "cell", "window K", "window V" or the number of an unknown kind.
func (k Kind) String() string {
	if k <= lastKind {
		return [...]string{"K", "V", "conv", "state", "cell", "window K", "window V"}[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// PerToken reports whether a section of this kind has one row for each token. Sections of
// other kinds have one row, computed from all tokens up to the page's last.
func (k Kind) PerToken() bool { return k == KindK || k == KindV || k == KindCell }

// Section is one layer's keys, values or state: rows of RowBytes bytes.
type Section struct {
	Group, Layer uint16
	Kind         Kind
	RowBytes     uint32
}

// Bytes is the size of the section, in bytes, in a page of the given number of tokens.
func (s Section) Bytes(tokens int) int64 {
	if s.Kind.PerToken() {
		return int64(tokens) * int64(s.RowBytes)
	}
	return int64(s.RowBytes)
}

// Limits of a page. All are far above any real model and keep every size computed from them inside an int64.
const (
	// PageAlign is the alignment, in bytes, of sections in memory and on disk.
	PageAlign = 4096

	MaxTokens      = 1 << 16 // tokens per page
	MaxSections    = 1 << 13 // sections per page
	MaxMedia       = 1 << 12 // media items per page
	maxRowBytes    = 1 << 24 // bytes of a row
	MaxLayoutBytes = 1 << 36 // bytes of all sections with their padding
)

// Layout places a page's sections in one contiguous buffer: section i holds its Bytes at an offset that
// is a multiple of PageAlign, in the order of the sections. Bytes between sections are zero on disk.
//
// The zero Layout has no sections and fits no page.
type Layout struct {
	sections []Section
	offsets  []int // of each section; len(sections)+1 entries, the last is Size
	tokens   int
}

// NewLayout lays out sections for a page of the given number of tokens. NewLayout returns ErrInvalidPage when
// a size is zero or beyond the limits above, a kind is unknown, or two sections share group, layer and kind.
func NewLayout(sections []Section, tokens int) (Layout, error) {
	if tokens < 1 || tokens > MaxTokens {
		return Layout{}, fmt.Errorf("lay out page of %d tokens: want 1 to %d: %w", tokens, MaxTokens, ErrInvalidPage)
	}
	if len(sections) < 1 || len(sections) > MaxSections {
		return Layout{}, fmt.Errorf("lay out page of %d sections: want 1 to %d: %w", len(sections), MaxSections, ErrInvalidPage)
	}
	l := Layout{sections: slices.Clone(sections), offsets: make([]int, 0, len(sections)+1), tokens: tokens}
	seen := make(map[Section]bool, len(sections))
	var end int64
	for i, s := range sections {
		id := Section{Group: s.Group, Layer: s.Layer, Kind: s.Kind}
		if s.Kind > lastKind || s.RowBytes < 1 || s.RowBytes > maxRowBytes || seen[id] {
			return Layout{}, fmt.Errorf("lay out section %d (group %d layer %d %v, %d bytes per row): %w",
				i, s.Group, s.Layer, s.Kind, s.RowBytes, ErrInvalidPage)
		}
		seen[id] = true
		l.offsets = append(l.offsets, int(end))
		end = AlignUp(end + s.Bytes(tokens))
		if end > MaxLayoutBytes || end != int64(int(end)) {
			return Layout{}, fmt.Errorf("lay out page: sections need more than %d bytes: %w", int64(MaxLayoutBytes), ErrInvalidPage)
		}
	}
	l.offsets = append(l.offsets, int(end))
	return l, nil
}

// Size returns the size of the whole buffer in bytes, a multiple of PageAlign.
func (l Layout) Size() int {
	if len(l.offsets) == 0 {
		return 0
	}
	return l.offsets[len(l.offsets)-1]
}

// Sections returns a copy of the sections, in buffer order.
func (l Layout) Sections() []Section { return slices.Clone(l.sections) }

// Len returns the number of sections.
func (l Layout) Len() int { return len(l.sections) }

// Tokens returns the number of tokens of the page.
func (l Layout) Tokens() int { return l.tokens }

// Rows returns the rows of section i inside buf. Rows panics when buf is shorter than Size or
// section i does not exist.
func (l Layout) Rows(buf []byte, i int) []byte {
	start, end := l.offsets[i], l.end(i)
	return buf[start:end:end]
}

// Gap returns the padding after section i inside buf.
func (l Layout) Gap(buf []byte, i int) []byte { return buf[l.end(i):l.offsets[i+1]] }

// end is the offset of the end of section i's rows in a buffer.
func (l Layout) end(i int) int { return l.offsets[i] + int(l.sections[i].Bytes(l.tokens)) }

// Equal reports whether both layouts have the same sections and the same number of tokens.
func (l Layout) Equal(o Layout) bool {
	return l.tokens == o.tokens && slices.Equal(l.sections, o.sections)
}

// HasState reports whether a section holds the state of a single position.
func (l Layout) HasState() bool {
	return slices.ContainsFunc(l.sections, func(s Section) bool { return !s.Kind.PerToken() })
}

// Within returns the indexes of l's sections in o, a layout that has the same number of tokens and l's
// sections in the same order, possibly among others. Within returns false for any other layout o.
func (l Layout) Within(o Layout) (at []int, ok bool) {
	if l.tokens != o.tokens {
		return nil, false
	}
	at = make([]int, 0, len(l.sections))
	for i, s := range o.sections {
		if len(at) < len(l.sections) && l.sections[len(at)] == s {
			at = append(at, i)
		}
	}
	return at, len(at) == len(l.sections)
}

// AlignUp rounds n up to a multiple of PageAlign.
func AlignUp(n int64) int64 { return (n + PageAlign - 1) &^ (PageAlign - 1) }
