package llamastate

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Kind is the kind of a cache.
type Kind uint8

const (
	Full      Kind = iota // rows of all positions
	Window                // rows of the last positions
	Recurrent             // one state, after the last position
)

// String returns "full", "window" or "recurrent".
func (k Kind) String() string { return [...]string{"full", "window", "recurrent"}[k] }

// Shape is the part of a file that all files of one running server have in common.
type Shape struct {
	Version uint32 // of the format: 2, 3 or 4
	Caches  []Cache
}

// Cache is the shape of one cache of a model.
type Cache struct {
	Kind    Kind
	Streams uint32 // that cells may be in; 0 for a recurrent cache
	Layers  uint32 // as the file counts layers; a recurrent cache counts all layers of the model

	Ext        bool      // cells have a two-dimensional position
	Transposed bool      // V is stored by column
	Rotations  [2]uint32 // sizes of the rotations of K and V, in version 4

	// Tensors are K and V of layers with attention, and the states of the convolution and of
	// the recurrence of recurrent layers. There is no V where K holds V.
	Tensors [2][]Tensor
}

// Tensor is one layer's part of a cache.
type Tensor struct {
	Type    int32 // of ggml
	Row     int64 // bytes for a cell
	Element int64 // bytes of an element where the tensor is stored by column, else 0
}

// Equal reports whether two shapes are the same.
func (s *Shape) Equal(o *Shape) bool { return reflect.DeepEqual(s, o) }

// Has reports whether a cache of this kind exists.
func (s *Shape) Has(kind Kind) bool {
	return slices.ContainsFunc(s.Caches, func(c Cache) bool { return c.Kind == kind })
}

// HasEnd reports whether a sequence needs more than the rows of its tokens: a window or a
// state, which exist only where a file ends.
func (s *Shape) HasEnd() bool { return s.Has(Window) || s.Has(Recurrent) }

// RowBytes is the size of the rows of a file of tokens, in bytes. window is the number of
// positions that the server's window keeps.
func (s *Shape) RowBytes(tokens, window int) int64 {
	n := s.EndBytes(tokens, window)
	for _, c := range s.Caches {
		if c.Kind == Full {
			n += int64(tokens) * c.rowBytes()
		}
	}
	return n
}

// EndBytes is the part of RowBytes that belongs to the file's end: the rows of windows, and states.
func (s *Shape) EndBytes(tokens, window int) (n int64) {
	for _, c := range s.Caches {
		switch c.Kind {
		case Window:
			n += int64(min(tokens, window)+1) * c.rowBytes()
		case Recurrent:
			n += c.rowBytes()
		}
	}
	return n
}

// rowBytes is the size of a row of all tensors.
func (c *Cache) rowBytes() (n int64) {
	for _, tensors := range c.Tensors {
		for _, t := range tensors {
			n += t.Row
		}
	}
	return n
}

// kinds are the kinds of the sections that hold the tensors of a cache.
var kinds = [...][2]pagefile.Kind{
	Full:      {pagefile.KindK, pagefile.KindV},
	Window:    {pagefile.KindWindowK, pagefile.KindWindowV},
	Recurrent: {pagefile.KindConv, pagefile.KindState},
}

// Sections returns the sections of a page without an end: the rows of its tokens.
func (s *Shape) Sections() []pagefile.Section { return s.sections(0, Full) }

// EndSections returns the sections of a page after whose last token a sequence can go on:
// the rows of its tokens, those of the last window positions of a window, and the states.
func (s *Shape) EndSections(window int) []pagefile.Section {
	return s.sections(window, Full, Window, Recurrent)
}

// sections returns a section for each tensor of the caches of some kinds. A section's Group is the number of
// a cache, its Layer the tensor's place in the cache's list. Tensors of 0 bytes have no section.
func (s *Shape) sections(window int, of ...Kind) []pagefile.Section {
	var sections []pagefile.Section
	for group, c := range s.Caches {
		if !slices.Contains(of, c.Kind) {
			continue
		}
		rows := int64(1)
		if c.Kind == Window {
			rows = int64(window)
		}
		for half, tensors := range c.Tensors {
			for layer, t := range tensors {
				if bytes := rows * t.Row; bytes > 0 {
					sections = append(sections, pagefile.Section{
						Group: uint16(group), Layer: uint16(layer), Kind: kinds[c.Kind][half], RowBytes: uint32(bytes),
					})
				}
			}
		}
	}
	return sections
}

// typeNames are ggml's names of the types that a cache of K and V can have.
var typeNames = map[int32]string{
	0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16",
}

// CacheType names the types of K and V: "f16", or "q8_0/f16" where they differ. Types of
// layers that differ are joined by "+".
func (s *Shape) CacheType() string {
	var of [2][]string
	for _, c := range s.Caches {
		if c.Kind == Recurrent {
			continue
		}
		for i, tensors := range c.Tensors {
			for _, t := range tensors {
				name := cmp.Or(typeNames[t.Type], fmt.Sprintf("type-%d", t.Type))
				if !slices.Contains(of[i], name) {
					of[i] = append(of[i], name)
				}
			}
		}
	}
	k, v := strings.Join(of[0], "+"), strings.Join(of[1], "+")
	if v == "" || v == k {
		return k
	}
	return k + "/" + v
}
