package pagefile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// memBlob is a Source in memory.
type memBlob []byte

func (m memBlob) Size() int64 { return int64(len(m)) }
func (m memBlob) ReadAt(_ context.Context, p []byte, off int64) error {
	n, err := bytes.NewReader(m).ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	return err
}

// encodeFile returns a page's file.
func encodeFile(t testing.TB, p *Page, pageTokens int, compress bool) []byte {
	t.Helper()
	var c *Codec
	if compress {
		c = theCodec(t)
	}
	p.ClearGaps()
	e, err := Encode(testFingerprint(1), pageTokens, p, c)
	require.NoError(t, err)
	file := fileOf(e)
	require.EqualValues(t, e.Header.FileBytes, len(file))
	return file
}

// fileOf returns the bytes of a file.
func fileOf(e *Encoded) []byte {
	var file bytes.Buffer
	_ = e.WriteTo(func(p []byte) error { file.Write(p); return nil }) // writing to a buffer never fails
	return file.Bytes()
}

func theCodec(t testing.TB) *Codec {
	c, err := NewCodec()
	require.NoError(t, err)
	return c
}

// readFile reads a file as Read does, and checks it with a Checker.
func readFile(t testing.TB, file []byte, l Layout, buf []byte) (*Header, error) {
	h, err := ReadHeader(ctx, memBlob(file))
	if err != nil {
		return nil, err
	}
	if !h.Layout.Equal(l) {
		return nil, ErrMismatch
	}
	return h, ReadPayload(ctx, memBlob(file), h, h.All(), theCodec(t), buf)
}

func TestFormatRoundTrip(t *testing.T) {
	for _, pageTokens := range []int{1, 255, 256} {
		for _, tokens := range []int{1, pageTokens/2 + 1, pageTokens} {
			for _, compress := range []bool{false, true} {
				p := pageOf(t, testSections, testFingerprint(1), prompt(1, tokens), Media{Offset: 0, Hash: [32]byte{7}})
				file := encodeFile(t, p, pageTokens, compress)
				buf := bytes.Repeat([]byte{0xaa}, p.Layout.Size())
				h, err := readFile(t, file, p.Layout, buf)
				require.NoError(t, err)
				require.Equal(t, p.Payload, buf)
				require.Equal(t, p.Tokens, h.Tokens)
				require.Equal(t, p.Media, h.Media)
				require.Equal(t, tokens < pageTokens, h.Tail())
				if !compress {
					at := h.payloadOffset()
					require.Equal(t, p.Payload, file[at:at+int64(p.Layout.Size())], "a raw payload is the layout's buffer")
				}
				_, err = Stream(ctx, memBlob(file), nil)
				require.NoError(t, err)
			}
		}
	}
}

func TestFormatGolden(t *testing.T) {
	l := layoutOf(t, []Section{{Group: 1, Layer: 2, Kind: KindK, RowBytes: 3}, {Group: 1, Layer: 2, Kind: KindV, RowBytes: 2}}, 2)
	p := &Page{Parent: Key{0xaa}, Start: 4, Tokens: []int32{5, -1}, Media: []Media{{Offset: 1, Hash: [32]byte{0xbb}}}, Layout: l, Payload: make([]byte, l.Size())}
	copy(l.Rows(p.Payload, 0), "abcdef")
	copy(l.Rows(p.Payload, 1), "wxyz")
	file := encodeFile(t, p, 4, false)
	require.Len(t, file, 3*4096+32)
	var lines []string
	for at := 0; at < len(file); at += 16 {
		line := file[at:min(at+16, len(file))]
		if !allZero(line) {
			lines = append(lines, hex.EncodeToString(binary.BigEndian.AppendUint16(nil, uint16(at)))+" "+hex.EncodeToString(line))
		}
	}
	got := []byte{}
	for _, l := range lines {
		got = append(got, l...)
		got = append(got, '\n')
	}
	path := filepath.Join("testdata", "page.golden")
	if os.Getenv("REWRITE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// requireBad fails unless all ways of reading refuse the file.
func requireBad(t *testing.T, s *Checker, file []byte, l Layout, buf []byte, what string, at int) {
	t.Helper()
	if _, err := readFile(t, file, l, buf); !errors.Is(err, ErrDamaged) {
		t.Fatalf("%s %d: read gives %v", what, at, err)
	}
	if _, err := Stream(ctx, memBlob(file), nil); !errors.Is(err, ErrDamaged) {
		t.Fatalf("%s %d: verify gives %v", what, at, err)
	}
	if _, err := s.Check(ctx, memBlob(file)); !errors.Is(err, ErrDamaged) {
		t.Fatalf("%s %d: a checker gives %v", what, at, err)
	}
}

// smallPage has few bytes, so that tests can change each of them.
func smallPage(t *testing.T) *Page {
	l := layoutOf(t, []Section{{Layer: 0, Kind: KindK, RowBytes: 40}, {Layer: 0, Kind: KindV, RowBytes: 40}}, 5)
	p := &Page{Parent: Key{3}, Start: 8, Tokens: prompt(2, 5), Media: []Media{{Offset: 2}}, Layout: l, Payload: make([]byte, l.Size())}
	for i := range l.Len() {
		copy(l.Rows(p.Payload, i), bytes.Repeat([]byte("kv cache "), 23))
	}
	return p
}

func TestFormatEveryBitOfHeaderTableAndFooter(t *testing.T) {
	s := aChecker(t)
	for _, compress := range []bool{false, true} {
		p := smallPage(t)
		file := encodeFile(t, p, testTokens, compress)
		buf := make([]byte, p.Layout.Size())
		flip := func(at, bit int) {
			file[at] ^= 1 << bit
			requireBad(t, s, file, p.Layout, buf, "bit of byte", at)
			file[at] ^= 1 << bit
		}
		for at := range int(headerBytes(5, 1, 2)) {
			for bit := range 8 {
				flip(at, bit)
			}
		}
		for at := len(file) - FooterBytes; at < len(file); at++ {
			for bit := range 8 {
				flip(at, bit)
			}
		}
		// All padding and all sections, one bit of each byte.
		for at := int(headerBytes(5, 1, 2)); at < len(file)-FooterBytes; at++ {
			flip(at, at%8)
		}
		_, err := readFile(t, file, p.Layout, buf)
		require.NoError(t, err)
		_, err = s.Check(ctx, memBlob(file))
		require.NoError(t, err, "a checker goes on after damage")
	}
}

func TestFormatRandomPayloadBits(t *testing.T) {
	const flips = 10_000
	s, rng := aChecker(t), rand.New(rand.NewPCG(1, 2))
	p := pageOf(t, testSections, Key{3}, prompt(2, testTokens))
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, p, testTokens, compress)
		h, err := ReadHeader(ctx, memBlob(file))
		require.NoError(t, err)
		at0 := int(h.payloadOffset())
		buf := make([]byte, p.Layout.Size())
		for range flips / 2 {
			at, bit := at0+rng.IntN(len(file)-at0), rng.IntN(8)
			file[at] ^= 1 << bit
			requireBad(t, s, file, p.Layout, buf, "bit of byte", at)
			file[at] ^= 1 << bit
		}
	}
}

func TestFormatEveryTruncation(t *testing.T) {
	s := aChecker(t)
	for _, compress := range []bool{false, true} {
		p := smallPage(t)
		file := encodeFile(t, p, testTokens, compress)
		buf := make([]byte, p.Layout.Size())
		for n := range file {
			requireBad(t, s, file[:n], p.Layout, buf, "truncation to", n)
		}
		requireBad(t, s, append(bytes.Clone(file), 0), p.Layout, buf, "growth by", 1)
	}
}

// reseal corrects the checksums of a changed header, as a hostile writer would do.
func reseal(file []byte) {
	le := binary.LittleEndian
	crc := resealHeader(file)
	foot := file[len(file)-FooterBytes:]
	le.PutUint32(foot[8:], crc)
	le.PutUint32(foot[28:], Checksum(foot[:28]))
}

// resealHeader writes the right checksum into a header and returns it.
func resealHeader(header []byte) uint32 {
	le := binary.LittleEndian
	size := le.Uint32(header[132:])
	crc := Checksum(header[:size-crcBytes])
	le.PutUint32(header[size-crcBytes:], crc)
	return crc
}

func TestFormatHostileHeaders(t *testing.T) {
	s := aChecker(t)
	le := binary.LittleEndian
	table := fixedBytes + 4*5 + mediaBytes
	tests := map[string]func(f []byte){
		"unknown flag":       func(f []byte) { f[12] |= 2 },
		"tail flag missing":  func(f []byte) { f[12] = 0 },
		"reserved":           func(f []byte) { f[148] = 1 },
		"key":                func(f []byte) { f[48]++ },
		"parent":             func(f []byte) { f[80]++ },
		"token":              func(f []byte) { f[fixedBytes]++ },
		"media hash":         func(f []byte) { f[fixedBytes+4*5+4]++ },
		"media beyond page":  func(f []byte) { f[fixedBytes+4*5] = 5 },
		"start off boundary": func(f []byte) { f[112]++ },
		"page tokens huge":   func(f []byte) { le.PutUint32(f[116:], 1<<31) },
		"page tokens zero":   func(f []byte) { le.PutUint32(f[116:], 0) },
		"token count huge":   func(f []byte) { le.PutUint32(f[120:], 1<<30) },
		"media count huge":   func(f []byte) { le.PutUint32(f[124:], 1<<31) },
		"section count huge": func(f []byte) { le.PutUint32(f[128:], 1<<31) },
		"file size":          func(f []byte) { le.PutUint64(f[136:], 1<<62) },
		"payload offset":     func(f []byte) { le.PutUint32(f[144:], 8192) },
		"kind":               func(f []byte) { f[table+4] = 2 },
		"two sections alike": func(f []byte) { f[table+tableBytes+4] = 0 },
		"encoding":           func(f []byte) { f[table+5] = 2 },
		"entry reserved":     func(f []byte) { f[table+6] = 1 },
		"row bytes huge":     func(f []byte) { le.PutUint32(f[table+8:], 1<<31) },
		"offset":             func(f []byte) { le.PutUint64(f[table+12:], 8192) },
		"stored huge":        func(f []byte) { le.PutUint64(f[table+20:], 1<<63) },
		"stored zero":        func(f []byte) { le.PutUint64(f[table+20:], 0) },
		"raw huge":           func(f []byte) { le.PutUint64(f[table+28:], 1<<40) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			p := smallPage(t)
			file := encodeFile(t, p, testTokens, true)
			change(file)
			reseal(file)
			buf := make([]byte, p.Layout.Size())
			requireBad(t, s, file, p.Layout, buf, "header", 0)
		})
	}
	t.Run("newer schema", func(t *testing.T) {
		p := smallPage(t)
		file := encodeFile(t, p, testTokens, true)
		file[8] = SchemaLossy + 1
		reseal(file)
		_, err := ReadHeader(ctx, memBlob(file))
		require.ErrorIs(t, err, ErrMismatch)
	})
}

// TestStreamCopies copies pages larger than a step.
func TestStreamCopies(t *testing.T) {
	l := layoutOf(t, []Section{{Kind: KindK, RowBytes: 5000}, {Kind: KindV, RowBytes: 4096}}, 300)
	p := &Page{Parent: testFingerprint(1), Tokens: prompt(1, 300), Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, p, 300, compress)
		require.Greater(t, len(file), StepBytes)
		var out bytes.Buffer
		_, err := Stream(ctx, memBlob(file), func(b []byte) error { _, err := out.Write(b); return err })
		require.NoError(t, err)
		require.Equal(t, file, out.Bytes())
		_, err = Stream(ctx, memBlob(file), func([]byte) error { return io.ErrShortWrite })
		require.ErrorIs(t, err, io.ErrShortWrite)
	}
}

func TestRowsOfALayout(t *testing.T) {
	l := layoutOf(t, []Section{{RowBytes: 3}, {Layer: 1, RowBytes: 4096}}, 2)
	require.Equal(t, 3*4096, l.Size())
	buf := make([]byte, l.Size())
	require.Len(t, l.Rows(buf, 0), 6)
	require.Len(t, l.Rows(buf, 1), 8192)
	l.Rows(buf, 1)[0] = 9
	require.EqualValues(t, 9, buf[4096])
}

func TestKeys(t *testing.T) {
	k := Key{1, 0xab}
	got, err := ParseKey(k.String())
	require.NoError(t, err)
	require.Equal(t, k, got)
	for _, bad := range []string{"", "ab", k.String() + "00", "zz" + k.String()[2:], "AB" + k.String()[2:]} {
		_, err := ParseKey(bad)
		require.Error(t, err, bad)
	}
	// The key distinguishes media from tokens with the same bytes.
	m := Media{Offset: 7}
	tokens := append(prompt(1, 3), 7, 0, 0, 0, 0, 0, 0, 0, 0)
	require.NotEqual(t, ChainKey(k, tokens[:3], []Media{m}), ChainKey(k, tokens, nil))
	require.NotEqual(t, ChainKey(k, tokens, nil), ChainKey(Key{2}, tokens, nil))
	require.Equal(t, "c44876f5", ChainKey(Key{}, []int32{1, 2, 3}, []Media{m}).String()[:8], "keys on disk must keep their meaning")
}

// TestLeads: no page shares more tokens with another than its leads allow, and a page that
// differs in a part is told apart from one that does not, except for equal hashes.
func TestLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 300).Draw(t, "page tokens")
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 1<<20), size, size).Draw(t, "tokens")
		shared := rapid.IntRange(0, size).Draw(t, "shared")
		prompt := append([]int32(nil), tokens[:rapid.IntRange(shared, size).Draw(t, "prompt")]...)
		for i := shared; i < len(prompt); i++ {
			prompt[i] = -1 - tokens[i]
		}
		page, all := LeadsOf(tokens, nil, size)
		require.Equal(t, Parts, all)
		leads, parts := LeadsOf(prompt, nil, size)
		require.GreaterOrEqual(t, page.Most(leads, parts, size), shared)
	})
}

func TestLeadsTellPagesApart(t *testing.T) {
	tokens := make([]int32, 256)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	other := append([]int32(nil), tokens...)
	other[100] = -1
	page, _ := LeadsOf(tokens, nil, 256)
	leads, parts := LeadsOf(other, nil, 256)
	require.Equal(t, 103, page.Most(leads, parts, 256), "the difference is in the thirteenth part, tokens 96 to 103")
	leads, parts = LeadsOf(tokens[:40], nil, 256)
	require.Equal(t, 5, parts)
	require.Equal(t, 256, page.Most(leads, parts, 256))
	leads, parts = LeadsOf(tokens, []Media{{Offset: 20, Hash: [32]byte{1}}}, 256)
	require.Equal(t, 23, page.Most(leads, parts, 256), "another image")
}
