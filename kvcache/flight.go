package kvcache

import (
	"github.com/ollama/ollama/model/input"
)

// flight is a batch that is built and not yet computed. Its tokens are behind pointers
// because the runner fills a generated token in only after the batch before is sampled.
type flight struct {
	id    int
	parts []flightPart
}

// flightPart is the share of one sequence in a flight: positions [begin, begin+len(inputs)),
// and their cells in each group.
type flightPart struct {
	seq       int
	begin     int32
	inputs    []*input.Input
	cells     [][]int32
	promptEnd bool
	shortened bool // positions it computes are forgotten
}

// cut forgets positions from n on.
func (p *flightPart) cut(n int32) {
	keep := max(0, min(int(n-p.begin), len(p.inputs)))
	if keep < len(p.inputs) {
		p.promptEnd, p.shortened = false, true
	}
	p.inputs = p.inputs[:keep]
	cells := make([][]int32, len(p.cells)) // the old ones may be a copy's as well
	for g := range cells {
		cells[g] = p.cells[g][:keep]
	}
	p.cells = cells
}

func (p *flightPart) end() int32 { return p.begin + int32(len(p.inputs)) }

// land adds the flight's computed positions to the slot, up to the first without identity.
func (p *flightPart) land(s *slot, opts *Options) {
	read, whole := opts.Media.read(p.inputs)
	if !whole && opts.Backwards {
		s.broken = true
		return
	}
	for i := range read.media {
		read.media[i].Offset += uint32(p.begin)
	}
	cells := make([][]int32, len(p.cells))
	for g := range cells {
		cells[g] = p.cells[g][:len(read.tokens)]
	}
	s.add(int(p.begin), read.tokens, read.media, cells)
	if !whole {
		s.broken = true
	}
}

// partsOf splits a batch by sequence. cells are those of each group; skip says which
// sequences are not tracked.
func partsOf(sequences []int, positions []int32, inputs []*input.Input, cells [][]int32, skip func(seq int) bool) []flightPart {
	var parts []flightPart
	for i, seq := range sequences {
		if skip(seq) {
			continue
		}
		n := len(parts)
		if n == 0 || parts[n-1].seq != seq || parts[n-1].end() != positions[i] {
			parts = append(parts, flightPart{seq: seq, begin: positions[i], cells: make([][]int32, len(cells))})
			n++
		}
		p := &parts[n-1]
		p.inputs = append(p.inputs, inputs[i])
		for g := range cells {
			p.cells[g] = append(p.cells[g], cells[g][i])
		}
	}
	return parts
}
