package pagefile

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
)

// splitPage has K and V that look like a model's, a state, and cells.
func splitPage(t *testing.T) *Page {
	const tokens = 64
	l := layoutOf(t, []Section{
		{Layer: 0, Kind: KindK, RowBytes: 96}, {Layer: 0, Kind: KindV, RowBytes: 64},
		{Layer: 1, Kind: KindState, RowBytes: 4096}, {Layer: 2, Kind: KindCell, RowBytes: 4},
	}, tokens)
	p := &Page{Parent: Key{3}, Start: 256, Tokens: prompt(2, tokens), Layout: l, Payload: make([]byte, l.Size())}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 2 {
		rows := l.Rows(p.Payload, i)
		for at := 0; at < len(rows); at += 2 {
			binary.LittleEndian.PutUint16(rows[at:], uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
		}
	}
	state, cells := l.Rows(p.Payload, 2), l.Rows(p.Payload, 3)
	for at := 0; at < len(state); at += 4 {
		binary.LittleEndian.PutUint32(state[at:], math.Float32bits(float32(rng.NormFloat64())))
	}
	for at := 0; at < len(cells); at += 4 {
		binary.LittleEndian.PutUint32(cells[at:], uint32(at/4))
	}
	return p
}

func TestAPageOfPlanes(t *testing.T) {
	p := splitPage(t)
	file := encodeFile(t, p, 256, true)
	require.EqualValues(t, SchemaSplit, binary.LittleEndian.Uint32(file[8:]))
	buf := bytes.Repeat([]byte{0xaa}, p.Layout.Size())
	h, err := readFile(t, file, p.Layout, buf)
	require.NoError(t, err)
	require.Equal(t, p.Payload, buf)
	require.Equal(t, EncodingSplit, h.Sections[0].Encoding)
	require.Equal(t, EncodingSplit, h.Sections[1].Encoding)
	_, err = aChecker(t).Check(ctx, memBlob(file))
	require.NoError(t, err)

	for at := range file { // a bit of each byte
		file[at] ^= 1 << (at % 8)
		requireBad(t, file, p.Layout, buf, "bit of byte", at)
		file[at] ^= 1 << (at % 8)
	}
	for n := 0; n < len(file); n += 97 {
		requireBad(t, file[:n], p.Layout, buf, "truncated to", n)
	}
}

// TestSchemasFollowFromEncodings: an older program must not take a section for a damaged one.
func TestSchemasFollowFromEncodings(t *testing.T) {
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, splitPage(t), 256, compress)
		file[8] ^= Schema ^ SchemaSplit
		reseal(file)
		_, err := ReadHeader(ctx, memBlob(file))
		require.ErrorIs(t, err, ErrDamaged)
	}
}

// TestCheckerPutsPlanesTogether: checksums of hostile planes can be right.
func TestCheckerPutsPlanesTogether(t *testing.T) {
	s, c := aChecker(t), theCodec(t)
	p := splitPage(t)
	rows := p.Layout.Rows(p.Payload, 0)
	section := p.Layout.Sections()[0]
	good := func(n int) []byte {
		e, stored := c.Encode(append(bytes.Clone(rows), rows...)[:n], section)
		require.Equal(t, encoding.Split, e)
		return stored
	}
	whole := good(len(rows))
	raw := int64(len(rows))
	require.NoError(t, s.decodes(EncodingSplit, whole, raw))
	for name, stored := range map[string][]byte{
		"no header":            whole[:7],
		"no bases":             whole[:20],
		"too few":              good(len(rows) - 96),
		"too many":             good(len(rows) + 96),
		"trailing":             append(bytes.Clone(whole), 0),
		"cut":                  whole[:len(whole)-1],
		"a plane of gigabytes": append(bytes.Clone(whole[:8+48]), bytes.Repeat([]byte{0xfc}, 300)...),
	} {
		require.ErrorIs(t, s.decodes(EncodingSplit, stored, raw), ErrDamaged, name)
		require.ErrorIs(t, c.Decode(EncodingSplit, stored, make([]byte, raw)), ErrDamaged, name)
	}
}

// decodes checks stored bytes as a Checker does.
func (c *Checker) decodes(e Encoding, stored []byte, raw int64) error {
	in := &checking{Checker: c, ctx: ctx, blob: memBlob(stored), end: int64(len(stored))}
	if len(c.buf) == 0 {
		c.buf = make([]byte, StepBytes)
	}
	return in.decode(e, &summed{in: in, left: int64(len(stored))}, raw)
}
