package pagefile

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// Codec compresses and decompresses sections. All goroutines of a store share one Codec, which
// starts no goroutine of its own.
type Codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder

	gently bool // pieces are checked and decoded on the calling goroutine
}

// Gently returns the same codec for reads that use one processor each and leave the other
// processors to slots that compute.
func (c *Codec) Gently() *Codec {
	return &Codec{enc: c.enc, dec: c.dec, gently: true}
}

// maxDecodedBytes is the size of the largest section that a header can describe, for zstd's
// own limit. The capacity given to decode is the effective limit.
const maxDecodedBytes = uint64(MaxTokens) * maxRowBytes

var NewCodec = sync.OnceValues(func() (*Codec, error) {
	// Rows hardly ever repeat, but their exponents are skewed: the only gain is in the
	// literals, which zstd does not compress by default.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithAllLitEntropyCompression(true),
		zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxDecodedBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Codec{enc: enc, dec: dec}, nil
})

// Encode returns rows compressed, or nil when compression does not make rows smaller.
func (c *Codec) Encode(rows []byte) []byte {
	out := c.enc.EncodeAll(rows, make([]byte, 0, len(rows)))
	if len(out) >= len(rows) {
		return nil
	}
	return out
}

// Decode fills rows from stored. For any content of stored, Decode writes nothing beyond rows
// and returns ErrDamaged unless stored fills rows exactly.
func (c *Codec) Decode(stored, rows []byte) error {
	out, err := c.dec.DecodeAll(stored, rows[:0:len(rows)])
	if err != nil {
		return Damaged("decompress %d bytes into %d: %v", len(stored), len(rows), err)
	}
	if len(out) != len(rows) || &out[0] != &rows[0] {
		return Damaged("decompressing gives %d bytes, want %d", len(out), len(rows))
	}
	return nil
}

// eachSection runs fn for sections 0 … n-1 on all processors and returns the first error. No
// call begins after an error: a section that decompresses to too many bytes takes half as much
// memory again before the error is found.
func eachSection(n int, fn func(i int) error) error {
	var g errgroup.Group
	var failed atomic.Bool
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			if failed.Load() {
				return nil // an earlier section is damaged, so the page is lost
			}
			err := fn(i)
			if err != nil {
				failed.Store(true)
			}
			return err
		})
	}
	return g.Wait()
}
