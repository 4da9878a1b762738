package pagefile

import (
	"bytes"
	"errors"
	"testing"
)

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
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrMismatch) {
				t.Fatalf("error %v has no kind", err)
			}
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
