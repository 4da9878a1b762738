package kvcache

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// geometry is the shape of one token's rows over all groups and layers. The geometry is the
// same for every page of a model and becomes the page's table of sections.
type geometry struct {
	sections []pagefile.Section
	of       []int // group of each section; len(groups) for state
}

// measure reads the geometry from the caches. The runner's worst-case reservation allocates
// K and V; upstream ignores its failure, and then the first batch allocates them. Until all
// layers have memory there is no geometry, and nothing can be restored.
func measure(groups []group, states States, layers int) (geometry, error) {
	var geo geometry
	present := 0
	for i := range groups {
		g := &groups[i]
		beside, ok := g.Rows.(Beside)
		g.beside = ok && beside.RowsBeside()
		of := g.RowLayers()
		present += len(of)
		for _, layer := range of {
			for _, kind := range []pagefile.Kind{pagefile.KindK, pagefile.KindV} {
				n, err := g.RowBytes(layer, kind == pagefile.KindV)
				if err != nil {
					return geometry{}, fmt.Errorf("size of a row: %w", err)
				}
				geo.add(i, pagefile.Section{Group: g.id, Layer: uint16(layer), Kind: kind, RowBytes: uint32(n)})
			}
		}
		if g.windowed() {
			geo.add(i, g.cellNumbers())
		}
	}
	if states != nil {
		n, err := geo.addStates(states, len(groups))
		if err != nil {
			return geometry{}, fmt.Errorf("size of a state: %w", err)
		}
		present += n
	}
	if present != layers {
		return geometry{}, fmt.Errorf("%d of %d layers have memory", present, layers)
	}
	return geo, nil
}

// known reports whether the shape was measured.
func (geo *geometry) known() bool { return geo.sections != nil }

func (geo *geometry) add(group int, s pagefile.Section) {
	geo.sections = append(geo.sections, s)
	geo.of = append(geo.of, group)
}

// any reports whether a wanted group has a section.
func (geo *geometry) any(wanted func(group int) bool) bool {
	return slices.ContainsFunc(geo.of, wanted)
}

// layout lays out a page of tokens tokens with the sections of the wanted groups.
func (geo *geometry) layout(tokens int, wanted func(group int) bool) (pagefile.Layout, error) {
	var sections []pagefile.Section
	for i, s := range geo.sections {
		if wanted(geo.of[i]) {
			sections = append(sections, s)
		}
	}
	return pagefile.NewLayout(sections, tokens)
}

// hasAll reports whether a page has the rows of all groups.
func (geo *geometry) hasAll(layout pagefile.Layout) bool {
	rows := func(sections []pagefile.Section) (n int) {
		for _, s := range sections {
			if s.Kind.PerToken() {
				n++
			}
		}
		return n
	}
	return rows(layout.Sections()) == rows(geo.sections)
}

// stateID is the group of sections that hold state. No model has as many caches.
const stateID = math.MaxUint16

// kinds of state
var stateKinds = []pagefile.Kind{pagefile.KindConv, pagefile.KindState}

// addStates adds the sections of states, and returns the number of layers that have a state.
func (geo *geometry) addStates(states States, group int) (layers int, err error) {
	seen := make(map[int]bool)
	for _, kind := range stateKinds {
		for _, layer := range states.StateLayers(kind == pagefile.KindState) {
			n, err := states.StateBytes(layer, kind == pagefile.KindState)
			if err != nil {
				return 0, err
			}
			geo.add(group, pagefile.Section{Group: stateID, Layer: uint16(layer), Kind: kind, RowBytes: uint32(n)})
			seen[layer] = true
		}
	}
	return len(seen), nil
}

func (geo *geometry) tokenBytes() (sum int64) {
	for _, s := range geo.sections {
		if s.Kind == pagefile.KindK || s.Kind == pagefile.KindV {
			sum += int64(s.RowBytes)
		}
	}
	return sum
}

// pagesOf is a number of bytes of K/V in pages of the store, rounded up; 0 while the bytes of a token
// are not known.
func (geo *geometry) pagesOf(bytes int64, pageTokens int) int {
	page := geo.tokenBytes() * int64(pageTokens)
	if page == 0 {
		return 0
	}
	return int((bytes + page - 1) / page)
}
