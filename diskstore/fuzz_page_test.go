package diskstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// fuzzFileBytes bounds what fuzzers make of a header: reading a larger file only
// takes longer.
const fuzzFileBytes = 1 << 20

// hasKind fails unless err is one of those that a bad file may give.
func hasKind(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, pagefile.ErrDamaged) && !errors.Is(err, pagefile.ErrMismatch) {
		t.Fatalf("error %v has no kind", err)
	}
}

// readBothWays reads a file as a page is read and as it is verified. The first
// accepts only what the second does.
func readBothWays(t *testing.T, file []byte) (*pagefile.Header, []byte) {
	t.Helper()
	h, err := pagefile.ReadHeader(ctx, memBlob(file))
	if err != nil {
		hasKind(t, err)
		if _, err := pagefile.StreamPage(ctx, memBlob(file), nil); err == nil {
			t.Fatal("a file with a bad header passes as good")
		}
		return nil, nil
	}
	_, verr := pagefile.StreamPage(ctx, memBlob(file), nil)
	if verr != nil {
		hasKind(t, verr)
	}
	guarded := bytes.Repeat([]byte{0xaa}, h.Layout.Size()+2*pagefile.PageAlign)
	buf := guarded[pagefile.PageAlign : pagefile.PageAlign+h.Layout.Size() : pagefile.PageAlign+h.Layout.Size()]
	err = pagefile.ReadPayload(ctx, memBlob(file), h, h.All(), theCodec(t), buf)
	if err != nil {
		hasKind(t, err)
	}
	if err == nil && verr != nil {
		t.Fatalf("a file that is read does not verify: %v", verr)
	}
	for i := range pagefile.PageAlign {
		if guarded[i] != 0xaa || guarded[len(guarded)-1-i] != 0xaa {
			t.Fatal("bytes beside the buffer were written")
		}
	}
	if err != nil {
		return h, nil
	}
	return h, buf
}

// FuzzPageFile reads any bytes as a page. They get the checksums of a hostile
// writer where they have a header and a footer.
func FuzzPageFile(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*"+dir.PageExt))
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
	f.Fuzz(func(t *testing.T, file []byte, seal bool) {
		if len(file) > fuzzFileBytes {
			return
		}
		if seal && len(file) >= pagefile.FixedBytes+pagefile.FooterBytes {
			size := binary.LittleEndian.Uint32(file[132:])
			if size >= pagefile.FixedBytes+pagefile.CrcBytes && int64(size) <= int64(len(file)-pagefile.FooterBytes) {
				reseal(file)
			}
		}
		h, buf := readBothWays(t, file)
		if buf == nil {
			return
		}
		// What was accepted is what its own rows give when they are written.
		p := &pagefile.Page{Parent: h.Parent, Start: h.Start, Tokens: h.Tokens, Media: h.Media, Layout: h.Layout, Payload: buf}
		if err := p.Check(h.PageTokens); err != nil {
			t.Fatalf("a page that was read cannot be put: %v", err)
		}
		if h.Raw() {
			e, err := pagefile.EncodePage(h.Fingerprint, h.PageTokens, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			var again bytes.Buffer
			_ = e.WriteTo(func(b []byte) error { again.Write(b); return nil })
			if !bytes.Equal(file, again.Bytes()) {
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
		at := int(pagefile.HeaderBytes(len(p.Tokens), len(p.Media), 0)) - pagefile.CrcBytes
		f.Add(bytes.Clone(file[at : at+pagefile.TableBytes*p.Layout.Len()]))
	}
	file := encodeFile(&testing.T{}, p, testTokens, false)
	f.Fuzz(func(t *testing.T, table []byte) {
		n := len(table) / pagefile.TableBytes
		if n < 1 || n > 64 {
			return
		}
		before := int(pagefile.HeaderBytes(len(p.Tokens), len(p.Media), 0)) - pagefile.CrcBytes
		region := append(bytes.Clone(file[:before]), table[:n*pagefile.TableBytes]...)
		size := pagefile.HeaderBytes(len(p.Tokens), len(p.Media), n)
		region = append(region, make([]byte, pagefile.AlignUp(size)-int64(len(region)))...)
		le := binary.LittleEndian
		le.PutUint32(region[128:], uint32(n))
		le.PutUint32(region[132:], uint32(size))
		le.PutUint32(region[144:], uint32(pagefile.AlignUp(size)))
		// The file ends where the last section says.
		last := region[before+(n-1)*pagefile.TableBytes:]
		end := pagefile.AlignUp(int64(le.Uint64(last[12:])) + int64(le.Uint64(last[20:])))
		le.PutUint64(region[136:], uint64(end+pagefile.FooterBytes))
		resealHeader(region)
		h, err := pagefile.DecodeHeader(region, end+pagefile.FooterBytes)
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
		copy(whole[len(whole)-pagefile.FooterBytes:], h.Footer())
		readBothWays(t, whole)
	})
}

// fuzzPage is a small page with everything in it.
func fuzzPage() *pagefile.Page {
	l, err := pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 24}, {Kind: pagefile.KindV, RowBytes: 24}, {Group: 3, Layer: 1, RowBytes: 5}}, 5)
	if err != nil {
		panic(err)
	}
	p := &pagefile.Page{Parent: pagefile.Key{3}, Start: 8, Tokens: prompt(2, 5), Media: []pagefile.Media{{Offset: 2}}, Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	return p
}

// FuzzFooter puts any footer under a good page. Only its own is accepted.
func FuzzFooter(f *testing.F) {
	file := encodeFile(&testing.T{}, fuzzPage(), testTokens, false)
	good := file[len(file)-pagefile.FooterBytes:]
	f.Add(bytes.Clone(good), true)
	f.Add([]byte(pagefile.FooterMagic), false)
	f.Fuzz(func(t *testing.T, footer []byte, seal bool) {
		whole := append(bytes.Clone(file[:len(file)-pagefile.FooterBytes]), footer...)
		if n := len(whole); seal && len(footer) >= pagefile.FooterBytes {
			binary.LittleEndian.PutUint32(whole[n-4:], pagefile.Checksum(whole[n-pagefile.FooterBytes:n-4]))
		}
		_, buf := readBothWays(t, whole)
		if accepted := buf != nil; accepted != bytes.Equal(whole, file) {
			t.Fatalf("footer %x is accepted: %t", whole[len(file)-pagefile.FooterBytes:], accepted)
		}
	})
}

// FuzzSection stores any bytes as a compressed section with good checksums.
func FuzzSection(f *testing.F) {
	const tokens, row = 16, 4096
	c, err := pagefile.NewCodec()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.Enc.EncodeAll(make([]byte, tokens*row), nil))
	f.Add(c.Enc.EncodeAll(bytes.Repeat([]byte("kv cache"), tokens*row/8), nil))
	f.Add(zstdFrame(1, -1, 20))
	f.Add(zstdFrame(1000, 1<<40, 0))
	f.Add(zstdFrame(1000, -1, 31))
	sections := []pagefile.Section{{RowBytes: row}}
	f.Fuzz(func(t *testing.T, stored []byte) {
		if len(stored) == 0 || len(stored) >= tokens*row {
			return
		}
		readBothWays(t, hostilePage(sections, tokens, [][]byte{stored}))
	})
}
