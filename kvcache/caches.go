package kvcache

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// caches are the caches of a model, and the states of its recurrent layers: where the rows are, and
// of which shape. The shape is set once, under TieredCausal.mu, before the first restore; restores
// read it without that lock.
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

// lost notes that the groups have dropped the rows of a slot that a batch which begins at a position
// does not need.
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

// poison is the byte of poisoned rows: 0xff bytes are a NaN in f16 and as the scale of a quantized
// block.
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
