package huffman

import "golang.org/x/sys/cpu"

// Fast tells whether this processor has the instructions that make Decode quicker than the library.
var Fast = cpu.X86.HasBMI1 && cpu.X86.HasBMI2

// rounds decodes as much of the streams as is sure to be there: all four together, then each.
func (d *Decoder) rounds(stored, plane []byte) {
	if !Fast || len(plane) == 0 {
		return
	}
	s := &d.streams
	for {
		n := s.rounds(0)
		for i := 1; i < streamCount; i++ {
			n = min(n, s.rounds(i))
		}
		if n == 0 {
			break
		}
		rounds4(s, &d.tables.all, &stored[0], &plane[0], n)
	}
	for i := range streamCount {
		for n := s.rounds(i); n > 0; n = s.rounds(i) {
			rounds1(s, &d.tables.all, &stored[0], &plane[0], n, i)
		}
	}
}

// rounds4 does n rounds of all streams. streams_amd64.s has both.
//
//go:noescape
func rounds4(s *streams, t *table, stored, plane *byte, n int)

// rounds1 does n rounds of stream i.
//
//go:noescape
func rounds1(s *streams, t *table, stored, plane *byte, n, i int)
