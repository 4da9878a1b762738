package diskstore

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// FuzzHeader checks that no header, however hostile, makes the decoder panic or
// allocate beyond its size, and that what it accepts encodes to the same bytes.
func FuzzHeader(f *testing.F) {
	t := &testing.T{}
	for _, compress := range []bool{false, true} {
		for _, tokens := range []int{1, testTokens} {
			file := encodeFile(t, pageOf(t, testFingerprint(1), 0, prompt(1, tokens), pagefile.Media{}), testTokens, compress)
			f.Add(file[:4096], int64(len(file)))
		}
	}
	f.Add([]byte(pagefile.PageMagic), int64(8))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, region []byte, fileBytes int64) {
		if len(region) >= pagefile.FixedBytes {
			// Let the fuzzer past the checksum.
			if n, err := pagefile.HeaderSize(region, fileBytes); err == nil && n == int64(len(region)) {
				resealHeader(region)
			}
		}
		h, err := pagefile.DecodeHeader(region, fileBytes)
		if err != nil {
			if !errors.Is(err, pagefile.ErrDamaged) && !errors.Is(err, pagefile.ErrMismatch) {
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
	c, err := pagefile.NewCodec()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.Enc.EncodeAll(make([]byte, 100), nil))
	f.Add(c.Enc.EncodeAll(bytes.Repeat([]byte("ab"), 1000), nil))
	f.Fuzz(func(t *testing.T, stored []byte) {
		buf := bytes.Repeat([]byte{0xaa}, 300)
		err := c.Decode(stored, buf[100:200])
		if err != nil && !errors.Is(err, pagefile.ErrDamaged) {
			t.Fatalf("error %v has no kind", err)
		}
		for i, b := range buf {
			if (i < 100 || i >= 200) && b != 0xaa {
				t.Fatalf("byte %d outside the rows was written", i)
			}
		}
	})
}
