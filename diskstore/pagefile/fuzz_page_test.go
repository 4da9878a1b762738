package pagefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fuzzFileBytes bounds the files that fuzzers build from a header: larger files only take longer.
const fuzzFileBytes = 1 << 20

// hasKind fails unless err is one of the errors of a bad file.
func hasKind(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrMismatch) {
		t.Fatalf("error %v has no kind", err)
	}
}

// readBothWays reads a file with the reader of pages, with a Stream, and with a Checker. Every file
// that the reader accepts, the Stream accepts, too, and the Checker accepts no other.
func readBothWays(t *testing.T, file []byte) (*Header, []byte) {
	t.Helper()
	h, err := ReadHeader(ctx, memBlob(file))
	if err != nil {
		hasKind(t, err)
		if _, err := Stream(ctx, memBlob(file), nil); err == nil {
			t.Fatal("a file with a bad header passes as good")
		}
		return nil, nil
	}
	_, verr := Stream(ctx, memBlob(file), nil)
	if verr != nil {
		hasKind(t, verr)
	}
	guarded := bytes.Repeat([]byte{0xaa}, h.Layout.Size()+2*PageAlign)
	buf := guarded[PageAlign : PageAlign+h.Layout.Size() : PageAlign+h.Layout.Size()]
	err = ReadPayload(ctx, memBlob(file), h, h.All(), theCodec(t), buf)
	if err != nil {
		hasKind(t, err)
	}
	if err == nil && verr != nil {
		t.Fatalf("a file that is read does not verify: %v", verr)
	}
	if _, cerr := aChecker(t).Check(ctx, memBlob(file)); (cerr == nil) != (err == nil) && !hugeWindow(cerr) {
		t.Fatalf("a reader says %v, a checker %v", err, cerr)
	}
	for i := range PageAlign {
		if guarded[i] != 0xaa || guarded[len(guarded)-1-i] != 0xaa {
			t.Fatal("bytes beside the buffer were written")
		}
	}
	if err != nil {
		return h, nil
	}
	return h, buf
}

// hugeWindow reports an error of a section that a Checker has too little memory for.
func hugeWindow(err error) bool {
	return err != nil && strings.Contains(err.Error(), "cannot be checked")
}

// FuzzPageFile reads any bytes as a page. Bytes with a header and a footer get right
// checksums, as from a hostile writer.
func FuzzPageFile(f *testing.F) {
	files, err := filepath.Glob("../testdata/golden/*.kvp")
	if err != nil || len(files) == 0 {
		f.Fatal("no golden pages", err)
	}
	for _, path := range files {
		file, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file, true)
		f.Add(file, false)
		f.Add(file[:len(file)/2], true)
	}
	for _, e := range []Encoding{EncodingQ8, EncodingQ4, EncodingInt4} {
		_, file := lossyPage(f, e, EncodingRaw, e)
		f.Add(file, true)
	}
	f.Fuzz(func(t *testing.T, file []byte, seal bool) {
		if len(file) > fuzzFileBytes {
			return
		}
		if seal && len(file) >= fixedBytes+FooterBytes {
			size := binary.LittleEndian.Uint32(file[132:])
			if size >= fixedBytes+crcBytes && int64(size) <= int64(len(file)-FooterBytes) {
				reseal(file)
			}
		}
		h, buf := readBothWays(t, file)
		if buf == nil {
			return
		}
		// Encoding the rows of an accepted file gives the same file.
		p := &Page{Parent: h.Parent, Start: h.Start, Tokens: h.Tokens, Media: h.Media, Layout: h.Layout, Payload: buf}
		if err := p.Check(h.PageTokens); err != nil {
			t.Fatalf("a page that was read cannot be put: %v", err)
		}
		if h.Raw() {
			e, err := Encode(h.Fingerprint, h.PageTokens, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(file, fileOf(e)) {
				t.Fatal("a raw page does not encode to what was read")
			}
		}
	})
}

// FuzzTable replaces the section table of a good page.
func FuzzTable(f *testing.F) {
	p := fuzzPage()
	for _, compress := range []bool{false, true} {
		file := encodeFile(&testing.T{}, p, testTokens, compress)
		at := int(headerBytes(len(p.Tokens), len(p.Media), 0)) - crcBytes
		f.Add(bytes.Clone(file[at : at+tableBytes*p.Layout.Len()]))
	}
	file := encodeFile(&testing.T{}, p, testTokens, false)
	f.Fuzz(func(t *testing.T, table []byte) {
		n := len(table) / tableBytes
		if n < 1 || n > 64 {
			return
		}
		before := int(headerBytes(len(p.Tokens), len(p.Media), 0)) - crcBytes
		region := append(bytes.Clone(file[:before]), table[:n*tableBytes]...)
		size := headerBytes(len(p.Tokens), len(p.Media), n)
		region = append(region, make([]byte, AlignUp(size)-int64(len(region)))...)
		le := binary.LittleEndian
		le.PutUint32(region[128:], uint32(n))
		le.PutUint32(region[132:], uint32(size))
		le.PutUint32(region[144:], uint32(AlignUp(size)))
		// The file ends at the end of the last section.
		last := region[before+(n-1)*tableBytes:]
		end := AlignUp(int64(le.Uint64(last[12:])) + int64(le.Uint64(last[20:])))
		le.PutUint64(region[136:], uint64(end+FooterBytes))
		resealHeader(region)
		h, err := decodeHeader(region, end+FooterBytes)
		if err != nil {
			hasKind(t, err)
			return
		}
		if !bytes.Equal(h.Encode(), region) {
			t.Fatal("header does not encode to what was decoded")
		}
		if h.FileBytes > fuzzFileBytes || int64(h.Layout.Size()) > 4*fuzzFileBytes {
			return
		}
		whole := append(region, make([]byte, h.FileBytes-int64(len(region)))...)
		copy(whole[len(whole)-FooterBytes:], h.footer())
		readBothWays(t, whole)
	})
}

// fuzzPage is a small page with every part of the format.
func fuzzPage() *Page {
	l, err := NewLayout([]Section{{Kind: KindK, RowBytes: 24}, {Kind: KindV, RowBytes: 24}, {Group: 3, Layer: 1, RowBytes: 5}}, 5)
	if err != nil {
		panic(err)
	}
	p := &Page{Parent: Key{3}, Start: 8, Tokens: prompt(2, 5), Media: []Media{{Offset: 2}}, Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	return p
}

// FuzzFooter puts any footer under a good page. Only the page's own footer is accepted.
func FuzzFooter(f *testing.F) {
	file := encodeFile(&testing.T{}, fuzzPage(), testTokens, false)
	good := file[len(file)-FooterBytes:]
	f.Add(bytes.Clone(good), true)
	f.Add([]byte(footerMagic), false)
	f.Fuzz(func(t *testing.T, footer []byte, seal bool) {
		whole := append(bytes.Clone(file[:len(file)-FooterBytes]), footer...)
		if n := len(whole); seal && len(footer) >= FooterBytes {
			binary.LittleEndian.PutUint32(whole[n-4:], Checksum(whole[n-FooterBytes:n-4]))
		}
		_, buf := readBothWays(t, whole)
		if accepted := buf != nil; accepted != bytes.Equal(whole, file) {
			t.Fatalf("footer %x is accepted: %t", whole[len(file)-FooterBytes:], accepted)
		}
	})
}

// FuzzSection stores any bytes as an encoded section with good checksums.
func FuzzSection(f *testing.F) {
	const tokens, row = 16, 4096
	c, err := NewCodec()
	if err != nil {
		f.Fatal(err)
	}
	zstd := uint8(EncodingZstd)
	f.Add(zstd, c.coder.EncodeZstd(make([]byte, tokens*row)))
	f.Add(zstd, c.coder.EncodeZstd(bytes.Repeat([]byte("kv cache"), tokens*row/8)))
	f.Add(zstd, zstdFrame(1, -1, 20))
	f.Add(zstd, zstdFrame(1000, 1<<40, 0))
	f.Add(zstd, zstdFrame(1000, -1, 31))
	section := Section{Kind: KindK, RowBytes: row}
	rows := make([]byte, tokens*row)
	for at := 0; at < len(rows); at += 2 { // numbers of f16 from 1 to 4, of both signs
		binary.LittleEndian.PutUint16(rows[at:], 0x3c00+uint16(at*at%0x800)|uint16(at)<<14&0x8000)
	}
	for _, e := range []Encoding{EncodingQ8, EncodingQ4, EncodingInt4} {
		stored, err := c.EncodeLossy(e, rows, section)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(e), stored)
	}
	e, stored := c.Encode(rows, section)
	f.Add(uint8(e), stored)
	f.Fuzz(func(t *testing.T, e uint8, stored []byte) {
		if len(stored) == 0 || len(stored) >= tokens*row {
			return
		}
		readBothWays(t, hostilePage(Encoding(e), []Section{section}, tokens, [][]byte{stored}))
	})
}

// FuzzHeader checks that no header makes the decoder panic or allocate beyond the header's
// size, and that accepted headers encode to the same bytes.
func FuzzHeader(f *testing.F) {
	t := &testing.T{}
	for _, compress := range []bool{false, true} {
		for _, tokens := range []int{1, testTokens} {
			file := encodeFile(t, pageOf(t, testSections, testFingerprint(1), prompt(1, tokens), Media{}), testTokens, compress)
			f.Add(file[:4096], int64(len(file)))
		}
	}
	f.Add([]byte(PageMagic), int64(8))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, region []byte, fileBytes int64) {
		if len(region) >= fixedBytes {
			// Let the fuzzer past the checksum.
			if n, err := headerSize(region, fileBytes); err == nil && n == int64(len(region)) {
				resealHeader(region)
			}
		}
		h, err := decodeHeader(region, fileBytes)
		if err != nil {
			hasKind(t, err)
			return
		}
		if !bytes.Equal(h.Encode(), region) {
			t.Fatal("header does not encode to what was decoded")
		}
	})
}

// FuzzDecode checks that no compressed section writes outside its rows.
func FuzzDecode(f *testing.F) {
	c, err := NewCodec()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.coder.EncodeZstd(make([]byte, 100)))
	f.Add(c.coder.EncodeZstd(bytes.Repeat([]byte("ab"), 1000)))
	f.Add(c.coder.EncodeZstd(make([]byte, 64<<20)))
	f.Add(c.coder.EncodeZstd(make([]byte, 99)))
	f.Add([]byte("not zstd"))
	f.Fuzz(func(t *testing.T, stored []byte) {
		buf := bytes.Repeat([]byte{0xaa}, 300)
		err := c.Decode(EncodingZstd, stored, buf[100:200])
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("error %v has no kind", err)
		}
		for i, b := range buf {
			if (i < 100 || i >= 200) && b != 0xaa {
				t.Fatalf("byte %d outside the rows was written", i)
			}
		}
	})
}
