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

// flightPart is the share of one sequence in a flight: positions [begin, begin+len(inputs)).
type flightPart struct {
	seq       int
	begin     int32
	inputs    []*input.Input
	cells     []int32
	promptEnd bool
}

// cut forgets positions from n on.
func (p *flightPart) cut(n int32) {
	keep := max(0, min(int(n-p.begin), len(p.inputs)))
	if keep < len(p.inputs) {
		p.promptEnd = false
	}
	p.inputs, p.cells = p.inputs[:keep], p.cells[:keep]
}

func (p *flightPart) end() int32 { return p.begin + int32(len(p.inputs)) }

// land adds the flight's computed positions to the slot.
func (p *flightPart) land(s *slot) {
	for i, in := range p.inputs {
		if in.MultimodalHash != 0 || len(in.Multimodal) != 0 {
			// What an image contributes is not in its token, and its hash is seeded per
			// process: rows from here on have no identity that another process would share.
			s.broken = true
			return
		}
		s.add(p.begin+int32(i), in.Token, p.cells[i])
	}
}

// partsOf splits a batch by sequence. skip says which sequences are not tracked.
func partsOf(sequences []int, positions []int32, inputs []*input.Input, cells []int32, skip func(seq int) bool) []flightPart {
	var parts []flightPart
	for i, seq := range sequences {
		if skip(seq) {
			continue
		}
		n := len(parts)
		if n == 0 || parts[n-1].seq != seq || parts[n-1].end() != positions[i] {
			parts = append(parts, flightPart{seq: seq, begin: positions[i]})
			n++
		}
		p := &parts[n-1]
		p.inputs = append(p.inputs, inputs[i])
		p.cells = append(p.cells, cells[i])
	}
	return parts
}

// size is the number of tracked tokens.
func (f *flight) size() int {
	n := 0
	for i := range f.parts {
		n += len(f.parts[i].inputs)
	}
	return n
}
