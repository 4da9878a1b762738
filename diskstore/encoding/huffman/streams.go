package huffman

import (
	"encoding/binary"
	"math/bits"
)

const (
	streamCount    = 4
	jumpTableBytes = 6

	// A round decodes five look-ups of a stream: they take at most 55 of the 56 bits that are there
	// at least. A round moves a stream by at most roundBytes, and its output by at most roundSymbols.
	// A look-up writes symbolsMost bytes, also where it gives fewer.
	roundLookups = 5
	roundBytes   = 7
	roundSymbols = symbolsMost * roundLookups
)

// streams are the four streams of a plane. Offsets are those in the stored bytes and in the plane.
// streams_amd64.s knows the fields' places.
type streams struct {
	// bits are the next bits of each stream, the first one highest. The lowest bit that is set marks
	// their end: as many bits of the 8 bytes at offset at are taken as there are zeros below it.
	bits [streamCount]uint64
	at   [streamCount]int
	out  [streamCount]int // where the next byte of the plane goes

	from [streamCount]int // the stream's first byte
	to   [streamCount]int // behind the stream's last byte
	end  [streamCount]int // behind its part of the plane
}

// LeastPlane is the size of planes from which on Decode is quicker than the library.
const LeastPlane = 8 << 10

// Decoder has the memory for a plane. One goroutine uses a Decoder.
type Decoder struct {
	tree    tree
	tables  tables
	streams streams
}

// Decode fills a plane from its tree and streams. For any stored bytes, Decode writes nothing outside
// the plane, and returns ErrCorrupt unless they are exactly a plane of that size.
func (d *Decoder) Decode(stored, plane []byte) error {
	stored, err := d.tree.read(stored)
	if err != nil {
		return err
	}
	if err := d.streams.open(stored, len(plane)); err != nil {
		return err
	}
	d.tables.fill(&d.tree)
	d.rounds(stored, plane)
	lengths := d.tree.bySymbol()
	for i := range streamCount {
		if err := d.finish(i, stored, plane, lengths); err != nil {
			return err
		}
	}
	return nil
}

// open finds the streams, and the parts of a plane of n bytes.
func (s *streams) open(stored []byte, n int) error {
	if len(stored) < jumpTableBytes {
		return corrupt("%d bytes are no streams", len(stored))
	}
	at, part := jumpTableBytes, (n+streamCount-1)/streamCount
	if (streamCount-1)*part > n {
		return corrupt("%d bytes are no plane of four parts", n)
	}
	for i := range streamCount {
		size := len(stored) - at
		if i < streamCount-1 {
			size = int(binary.LittleEndian.Uint16(stored[2*i:]))
		}
		if size < 1 || size > len(stored)-at || stored[at+size-1] == 0 {
			return corrupt("a stream of %d bytes, of which %d are there", size, len(stored)-at)
		}
		s.from[i], s.to[i] = at, at+size
		s.out[i], s.end[i] = i*part, min((i+1)*part, n)
		at += size
		s.at[i], s.bits[i] = at-8, 0
		if size >= 8 {
			mark := bits.LeadingZeros8(stored[at-1]) + 1 // the stream ends with its highest bit that is set
			s.bits[i] = (binary.LittleEndian.Uint64(stored[at-8:]) | 1) << mark
		}
	}
	return nil
}

// rounds returns for how many rounds a stream surely has bits, and its part of the plane room.
func (s *streams) rounds(i int) int {
	if s.bits[i] == 0 {
		return 0
	}
	return max(0, min((s.at[i]-s.from[i])/roundBytes, (s.end[i]-s.out[i])/roundSymbols))
}

// finish decodes the rest of a stream, code by code. lengths are those of codes, by symbol.
func (d *Decoder) finish(i int, stored, plane []byte, lengths *[symbolsMax]uint8) error {
	s := &d.streams
	// left is the number of bits that are left.
	left := 8*(s.to[i]-s.from[i]) - bits.LeadingZeros8(stored[s.to[i]-1]) - 1
	if s.bits[i] != 0 {
		left = 8*(s.at[i]-s.from[i]) + 64 - bits.TrailingZeros64(s.bits[i])
	}
	stream := stored[s.from[i]:s.to[i]]
	for out := s.out[i]; out < s.end[i]; out++ {
		symbol := d.tables.all[peek(stream, left)].first()
		if left -= int(lengths[symbol]); left < 0 {
			return corrupt("a stream ends early")
		}
		plane[out] = symbol
	}
	if left != 0 {
		return corrupt("%d bits of a stream are left", left)
	}
	return nil
}

// peek returns the next look-up's bits of a stream with bits left, with zeros behind its end.
func peek(stream []byte, left int) int {
	low := left - lookupBits
	if low < 0 {
		return window(stream, 0) & (1<<left - 1) << -low
	}
	return window(stream, low) & (1<<lookupBits - 1)
}

// window returns 11 or more bits of a stream from a bit on, fewer at the stream's end.
func window(stream []byte, low int) (x int) {
	for i, b := range stream[low>>3 : min(low>>3+3, len(stream))] {
		x |= int(b) << (8 * i)
	}
	return x >> (low & 7)
}

func (t *tree) bySymbol() *[symbolsMax]uint8 {
	lengths := &t.weights // not needed any more
	for i, symbol := range t.symbols[:t.n] {
		lengths[symbol] = t.lengths[i]
	}
	return lengths
}
