package kvcache

import "github.com/ollama/ollama/model/input"

// flight is a batch that is built and not yet computed. Tokens are behind pointers because
// the runner fills in a generated token only after sampling the previous batch.
// TieredCausal.mu guards it.
type flight struct {
	id      int
	parts   []flightPart
	prompts []*account // of prompts that end with the batch
}

// flightPart is the share of one sequence in a flight: positions [begin, begin+len(inputs)),
// and their cells in each group.
type flightPart struct {
	seq       int
	begin     int32
	inputs    []*input.Input
	cells     [][]int32
	promptEnd bool
	shortened bool // positions that the batch computes were cut off

	// The text that rows attend to is fixed when the batch is built, even if the part is
	// cut later.
	blind bool           // an input without identity is in the batch and changes rows before it
	ahead ahead          // rows that attend to later positions
	batch []*input.Input // inputs, before they were cut
}

// note sets blind and ahead of a part when the part is built for a slot's request.
func (part *flightPart) note(s *slot, of *identity) {
	part.batch = part.inputs
	read, identified := of.read(part.inputs)
	part.blind = !identified && of.backwards
	first := len(part.inputs)
	if !identified {
		first = len(read.tokens)
	}
	for _, m := range read.media {
		first = min(first, int(m.Offset))
	}
	for _, span := range read.spans {
		first = min(first, span.begin)
	}
	part.ahead = nothingAhead
	if first < len(part.inputs) && int(part.end()) > s.private {
		part.ahead = ahead{int(part.begin) + first, int(part.end())}
	}
}

// cut drops positions from n on.
func (part *flightPart) cut(n int32) {
	keep := max(0, min(int(n-part.begin), len(part.inputs)))
	if keep < len(part.inputs) {
		part.promptEnd, part.shortened = false, true
	}
	part.inputs = part.inputs[:keep]
	cells := make([][]int32, len(part.cells)) // a copied slot may share the old slices
	for g := range cells {
		cells[g] = part.cells[g][:keep]
	}
	part.cells = cells
}

func (part *flightPart) end() int32 { return part.begin + int32(len(part.inputs)) }

// addTo adds the part's computed positions to the slot, up to the first without identity.
func (part *flightPart) addTo(s *slot, of *identity) {
	if part.blind {
		s.broken = true
		return
	}
	read, identified := of.read(part.inputs)
	if of.reach > 0 && len(read.media) > 0 {
		identified = part.reach(&read, of) && identified
	}
	for i := range read.media {
		read.media[i].Offset += uint32(part.begin)
	}
	cells := make([][]int32, len(part.cells))
	for g := range cells {
		cells[g] = part.cells[g][:len(read.tokens)]
	}
	s.add(int(part.begin), read.tokens, read.media, cells)
	if !identified {
		s.broken = true
	}
	switch end := int(part.end()); {
	case part.ahead.begin >= end: // none, or cut off
	case part.ahead.end > end:
		s.saw(part.ahead)
	default:
		s.ahead = append(s.ahead, part.ahead)
	}
}

// reach notes that images among the inputs of a part attended to all of its batch. With an input
// without identity in the batch, the rows from the first image on have no
// identity: they are left out, and reach returns false.
func (part *flightPart) reach(read *prompt, of *identity) bool {
	batch, identified := of.read(part.batch)
	if !identified {
		read.tokens, read.media = read.tokens[:read.media[0].Offset], nil
		return false
	}
	batch.ends(0, len(batch.tokens))
	copy(read.media, batch.media)
	return true
}

// partsOf splits a batch by sequence. cells[g] are the cells of the batch in group g.
func partsOf(sequences []int, positions []int32, inputs []*input.Input, cells [][]int32, tracked func(seq int) bool) []flightPart {
	var parts []flightPart
	for i, seq := range sequences {
		if !tracked(seq) {
			continue
		}
		n := len(parts)
		if n == 0 || parts[n-1].seq != seq || parts[n-1].end() != positions[i] {
			parts = append(parts, flightPart{seq: seq, begin: positions[i], cells: make([][]int32, len(cells))})
			n++
		}
		part := &parts[n-1]
		part.inputs = append(part.inputs, inputs[i])
		for g := range cells {
			part.cells[g] = append(part.cells[g], cells[g][i])
		}
	}
	return parts
}
