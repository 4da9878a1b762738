package encoding

import (
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// Shape describes rows of a section.
type Shape struct {
	// RowBytes is the size of a row, in bytes: that of one token in one layer. Numbers at the same
	// place in all rows belong to one channel. 0 means that nothing is known of the rows.
	RowBytes int
}

// Coder encodes and decodes rows. All goroutines of a program share one Coder, which starts no
// goroutine of its own.
type Coder struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

// NewCoder returns the program's Coder. maxDecoded bounds the bytes of one section, for zstd's own limit.
func NewCoder(maxDecoded uint64) (*Coder, error) {
	// Rows hardly ever repeat, but their exponents are skewed: the only gain is in the
	// literals, which zstd does not compress by default.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithAllLitEntropyCompression(true),
		zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxDecoded), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Coder{enc: enc, dec: dec}, nil
}

// Lossless encodes rows in the way that a sample of the rows promises to be smallest. Lossless
// returns Raw and nil for rows that become smaller by a 64th or less, which is not worth decoding.
func (c *Coder) Lossless(rows []byte, s Shape) (ID, []byte) {
	id, how := choose(rows, s)
	var stored []byte
	switch id {
	case Split:
		stored = how.encode(rows)
	case Zstd:
		stored = c.EncodeZstd(rows)
	}
	if stored == nil || len(stored) >= len(rows)-len(rows)/leastGain {
		return Raw, nil
	}
	return id, stored
}

// EncodeZstd returns rows as one zstd frame, which may be longer than rows.
func (c *Coder) EncodeZstd(rows []byte) []byte {
	return c.enc.EncodeAll(rows, make([]byte, 0, len(rows)))
}

// Decode fills rows from stored. For any content of stored, Decode writes nothing beyond rows
// and returns ErrCorrupt unless stored fills rows exactly.
func (c *Coder) Decode(id ID, stored, rows []byte) error {
	switch id {
	case Raw:
		if copy(rows, stored) != len(rows) || len(stored) != len(rows) {
			return corrupt("%d raw bytes, want %d", len(stored), len(rows))
		}
		return nil
	case Zstd:
		return c.decodeZstd(stored, rows)
	case Split:
		return decodeSplit(stored, rows)
	case Q8_0, Q4_0, Int4:
		return decodeLossy(id, stored, rows)
	}
	return corrupt("%v is unknown", id)
}

func (c *Coder) decodeZstd(stored, rows []byte) error {
	out, err := c.dec.DecodeAll(stored, rows[:0:len(rows)])
	if err != nil {
		return corrupt("decompress %d bytes into %d: %v", len(stored), len(rows), err)
	}
	if len(out) != len(rows) || len(out) > 0 && &out[0] != &rows[0] {
		return corrupt("decompressing gives %d bytes, want %d", len(out), len(rows))
	}
	return nil
}
