package kvcache

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// caches are the caches of a model, and the states of its recurrent layers. Their shape is set once,
// under TieredCausal.mu, before the first restore; restores read it without that lock.
type caches struct {
	groups []group
	states States // nil without recurrent layers
	layers int    // with K/V or state, in the whole model
	geometry
}

// stateful reports whether a sequence can only go on where a state was stored.
func (c *caches) stateful() bool { return c.states != nil }

// divisible reports whether a slot can be cut at any position. A window and a state belong
// to one position each: a model with either is not divisible.
func (c *caches) divisible() bool {
	return !c.groups[len(c.groups)-1].windowed() && !c.stateful() // groups with a window come last
}

// synchronize waits until the backend, which all groups share, has computed every batch.
func (c *caches) synchronize() { c.groups[0].SynchronizeRows() }

// free frees, with the runner's lock held, the cells of positions from begin on in all
// groups. Freeing to the end of a sequence cannot fail.
func (c *caches) free(seq, begin int) {
	for g := range c.groups {
		_ = c.groups[g].Remove(seq, int32(begin), math.MaxInt32)
	}
}

// lost notes that groups have dropped a slot's rows that a batch from position begin on does not need.
func (c *caches) lost(s *slot, begin int) {
	for g := range c.groups {
		s.from[g] = max(s.from[g], min(c.groups[g].oldest(begin), len(s.tokens)))
	}
}

// mayLose notes that the groups have dropped a slot's rows, or may drop them meanwhile, when the last
// batch that is built begins at a position.
func (c *caches) mayLose(s *slot, begin int) {
	for g := range c.groups {
		oldest := c.groups[g].oldest(begin)
		if s.broken && c.groups[g].windowed() {
			oldest = len(s.tokens) // the sequence's true end is not known
		}
		s.from[g] = max(s.from[g], oldest)
	}
}

// hasNone reports whether every group has dropped a slot's row at a position.
func (c *caches) hasNone(s *slot, position int) bool {
	return c.known() && !c.any(func(g int) bool { return g < len(c.groups) && position >= s.from[g] })
}

// poison is the byte of poisoned rows: a NaN in f16 and in the scale of a quantized block.
const poison = 0xff

// overwrite fills cells, which are given for each group, with a byte.
func (c *caches) overwrite(cells [][]int32, with byte) error {
	var errs []error
	for i, s := range c.sections {
		if s.Kind == pagefile.KindCell || !s.Kind.PerToken() {
			continue
		}
		g := c.of[i]
		if len(cells[g]) == 0 {
			continue
		}
		rows := bytes.Repeat([]byte{with}, int(s.RowBytes)*len(cells[g]))
		if err := c.groups[g].WriteRows(int(s.Layer), s.Kind == pagefile.KindV, cells[g], rows); err != nil {
			errs = append(errs, fmt.Errorf("overwrite cells of layer %d: %w", s.Layer, err))
		}
	}
	return errors.Join(errs...)
}

// heldBytes are the bytes of a slot's K/V that are in the engine's memory: those of the rows that
// layers with a window have dropped are not, nor those of pages that are on a disk.
func (c *caches) heldBytes(s *slot) (sum int64) {
	rowBytes := make([]int64, len(c.groups)) // of a token
	for i, section := range c.sections {
		if g := c.of[i]; section.Kind == pagefile.KindK || section.Kind == pagefile.KindV {
			rowBytes[g] += int64(section.RowBytes)
		}
	}
	for g := range c.groups {
		cells := s.cells[g][min(s.from[g], len(s.cells[g])):]
		if holder, ok := c.groups[g].Rows.(RowHolder); ok {
			if held, ok := holder.HeldBytes(cells); ok {
				sum += held
				continue
			}
		}
		sum += rowBytes[g] * int64(len(cells))
	}
	return sum
}

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

// pagesOf is a number of bytes of K/V in pages, rounded up; 0 while a token's bytes are not known.
func (geo *geometry) pagesOf(bytes int64, pageTokens int) int {
	page := geo.tokenBytes() * int64(pageTokens)
	if page == 0 {
		return 0
	}
	return int((bytes + page - 1) / page)
}
