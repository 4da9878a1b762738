package kvcache

import (
	"math"

	"github.com/ollama/ollama/model/input"
)

// flight is a batch that is built and not yet computed. Its tokens are behind pointers
// because the runner fills a generated token in only after the batch before is sampled.
// TieredCausal.mu guards it.
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

	// What rows have seen is decided when the batch is built, however little of it is kept.
	blind bool  // something without identity is in the batch, which changes rows before it
	ahead ahead // rows that have seen what comes after them
}

// ahead is rows from a position on of which some have seen the tokens up to another: rows of
// an image attend to all of their batch.
type ahead struct{ begin, end int }

// nothingAhead begins after all rows.
var nothingAhead = ahead{begin: math.MaxInt}

// note sets what is known of a part when it is built, of a slot's request.
func (p *flightPart) note(s *slot, opts *Options) {
	read, whole := opts.Media.read(p.inputs)
	p.blind = !whole && opts.Backwards
	first := len(p.inputs)
	if !whole {
		first = len(read.tokens)
	}
	for _, m := range read.media {
		first = min(first, int(m.Offset))
	}
	for _, span := range read.spans {
		first = min(first, span.begin)
	}
	p.ahead = nothingAhead
	if first < len(p.inputs) && int(p.end()) > s.private {
		p.ahead = ahead{int(p.begin) + first, int(p.end())}
	}
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
	if p.blind {
		s.broken = true
		return
	}
	read, whole := opts.Media.read(p.inputs)
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
	switch end := int(p.end()); {
	case p.ahead.begin >= end: // none, or cut off
	case p.ahead.end > end:
		s.saw(p.ahead)
	default:
		s.ahead = append(s.ahead, p.ahead)
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
