package pagefile

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/kvtier/kvtier/diskstore/encoding"
)

// lossySections are K and V in f16, and a section that keeps its bits.
var lossySections = []Section{
	{Kind: KindK, RowBytes: 256}, {Kind: KindV, RowBytes: 128}, {Layer: 1, Kind: KindK, RowBytes: 256},
	{Group: 1, Layer: 65535, Kind: KindCell, RowBytes: 4},
}

// lossyPage returns a page of numbers, and its file, whose sections of K and V have the encodings.
func lossyPage(t testing.TB, encodings ...Encoding) (*Page, []byte) {
	const tokens = 70
	p := pageOf(t, lossySections, testFingerprint(1), prompt(1, tokens))
	r := rand.New(rand.NewPCG(3, 3))
	h := &Header{
		Fingerprint: ColdFingerprint(testFingerprint(1)), Parent: p.Parent, Key: p.Key(), PageTokens: tokens, Tokens: p.Tokens, Layout: p.Layout,
	}
	body := make([][]byte, p.Layout.Len())
	for i, s := range p.Layout.Sections() {
		rows := p.Layout.Rows(p.Payload, i)
		e := EncodingRaw
		if body[i] = rows; s.Kind != KindCell {
			for at := 0; at < len(rows); at += 2 {
				binary.LittleEndian.PutUint16(rows[at:], float16.Fromfloat32(float32(r.NormFloat64())).Bits())
			}
			if e = encodings[i]; e.Lossy() {
				var err error
				body[i], err = theCodec(t).EncodeLossy(e, rows, s)
				require.NoError(t, err)
			}
		}
		h.Sections = append(h.Sections, StoredSection{
			Section: s, Encoding: e, Raw: int64(len(rows)), Stored: int64(len(body[i])), CRC: Checksum(body[i]),
		})
	}
	return p, fileOf(encoded(h, body))
}

// TestLossyPages: both readers take pages of all lossy encodings, and exact sections among them
// keep their bits.
func TestLossyPages(t *testing.T) {
	for _, encodings := range [][]Encoding{
		{EncodingQ8, EncodingQ8, EncodingQ8}, {EncodingQ4, EncodingInt4, EncodingRaw}, {EncodingRaw, EncodingInt4, EncodingQ4},
	} {
		p, file := lossyPage(t, encodings...)
		require.EqualValues(t, SchemaLossy, binary.LittleEndian.Uint32(file[8:]))
		buf := bytes.Repeat([]byte{0xaa}, p.Layout.Size())
		h, err := readFile(t, file, p.Layout, buf)
		require.NoError(t, err)
		require.Equal(t, p.Key(), h.Key)
		for i := range p.Layout.Len() {
			want, got := p.Layout.Rows(p.Payload, i), p.Layout.Rows(buf, i)
			s := &h.Sections[i]
			if !s.Encoding.Lossy() {
				require.Equal(t, want, got)
				continue
			}
			require.NotEqual(t, want, got)
			decoded := make([]byte, len(want))
			stored, err := theCodec(t).EncodeLossy(s.Encoding, want, s.Section)
			require.NoError(t, err)
			require.NoError(t, theCodec(t).Decode(s.Encoding, stored, decoded))
			require.Equal(t, decoded, got)
		}
		_, err = aChecker(t).Check(ctx, memBlob(file))
		require.NoError(t, err)
	}
}

// TestLossyPagesAreCheckedByDecoding: a Checker and a reader find a section with a right checksum
// that is none of its encoding.
func TestLossyPagesAreCheckedByDecoding(t *testing.T) {
	p, file := lossyPage(t, EncodingQ8, EncodingQ4, EncodingInt4)
	h, err := ReadHeader(ctx, memBlob(file))
	require.NoError(t, err)
	for i := range 3 {
		for _, at := range []int64{1, 6, 8, h.Sections[i].Stored - 1} {
			hostile := bytes.Clone(file)
			s := h.Sections[i]
			stored := hostile[s.Offset : s.Offset+s.Stored]
			if stored[at] ^= 0x81; at == s.Stored-1 {
				stored[8] ^= 4 // the first plane's size, or a center
			}
			table := fixedBytes + 4*len(h.Tokens) + tableBytes*i
			binary.LittleEndian.PutUint32(hostile[table+36:], Checksum(stored))
			reseal(hostile)
			_, err := aChecker(t).Check(ctx, memBlob(hostile))
			_, rerr := readFile(t, hostile, p.Layout, make([]byte, p.Layout.Size()))
			require.Equal(t, rerr == nil, err == nil, "section %d: a checker says %v, a read %v", i, err, rerr)
			if at < 8 {
				require.ErrorIs(t, err, ErrDamaged)
			}
			_, err = Stream(ctx, memBlob(hostile), nil)
			require.NoError(t, err, "checksums are right")
		}
	}
}

// TestSchemaOfLossyPages: the schema says exactly which programs can decode a page.
func TestSchemaOfLossyPages(t *testing.T) {
	p, lossy := lossyPage(t, EncodingRaw, EncodingQ4, EncodingRaw)
	_, exact := lossyPage(t, EncodingRaw, EncodingRaw, EncodingRaw)
	buf := make([]byte, p.Layout.Size())
	for schema := range byte(SchemaLossy) {
		hostile := bytes.Clone(lossy)
		hostile[8] = schema
		reseal(hostile)
		_, err := readFile(t, hostile, p.Layout, buf)
		require.Error(t, err, "schema %d", schema)
	}
	exact[8] = SchemaLossy
	reseal(exact)
	requireBad(t, aChecker(t), exact, p.Layout, buf, "schema", SchemaLossy)

	// No section takes more than its rows.
	table := fixedBytes + 4*len(p.Tokens) + tableBytes
	binary.LittleEndian.PutUint64(lossy[table+20:], 70*128)
	reseal(lossy)
	requireBad(t, aChecker(t), lossy, p.Layout, buf, "stored", 0)
}

// TestReadersKnowWhatMayBeLossy: a page of one token, in which each kind has a row, is good with a
// lossy section of K or V alone, and for no encoding between the known ones.
func TestReadersKnowWhatMayBeLossy(t *testing.T) {
	stored := lossyRows(t, EncodingQ8, bytes.Repeat([]byte{0, 0x3c}, 128))
	for kind := range lastKind + 1 {
		for e := range Encoding(32) {
			file := memBlob(hostilePage(e, []Section{{Kind: kind, RowBytes: 256}}, 1, [][]byte{stored}))
			h, err := ReadHeader(ctx, file)
			if e.Known() && e != EncodingRaw && (!e.Lossy() || kind == KindK || kind == KindV) {
				require.NoError(t, err, "%v %v", kind, e)
				require.Equal(t, e.Lossy(), h.schema() == SchemaLossy)
				continue
			}
			require.ErrorIs(t, err, ErrDamaged, "%v %v", kind, e)
			_, err = Stream(ctx, file, nil)
			require.ErrorIs(t, err, ErrDamaged, "%v %v", kind, e)
			_, _, err = aChecker(t).CheckSections(ctx, file)
			require.ErrorIs(t, err, ErrDamaged, "%v %v", kind, e)
		}
	}
}

// TestOnlyKAndVLoseBits: other kinds are refused, and rows that are no f16.
func TestOnlyKAndVLoseBits(t *testing.T) {
	c := theCodec(t)
	rows := make([]byte, 1<<12)
	for kind := range lastKind + 1 {
		_, err := c.EncodeLossy(EncodingQ8, rows, Section{Kind: kind, RowBytes: 256})
		if kind == KindK || kind == KindV {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "only K and V")
		}
	}
	_, err := c.EncodeLossy(EncodingQ8, rows, Section{Kind: KindK, RowBytes: 34})
	require.ErrorContains(t, err, "keep them lossless")
}

// TestColdFingerprint: fingerprints on disk must keep their meaning.
func TestColdFingerprint(t *testing.T) {
	require.Equal(t, "a7740a9f0c41886dc7e722e28d99ac1f93112d0a3ed314ffa8750906e3a6d32b", ColdFingerprint(testFingerprint(1)).String())
	require.NotEqual(t, ColdFingerprint(testFingerprint(1)), ColdFingerprint(testFingerprint(2)))
}

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
	s := aChecker(t)
	_, err = s.Check(ctx, memBlob(file))
	require.NoError(t, err)

	for at := range file { // a bit of each byte
		file[at] ^= 1 << (at % 8)
		requireBad(t, s, file, p.Layout, buf, "bit of byte", at)
		file[at] ^= 1 << (at % 8)
	}
	for n := 0; n < len(file); n += 97 {
		requireBad(t, s, file[:n], p.Layout, buf, "truncated to", n)
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
