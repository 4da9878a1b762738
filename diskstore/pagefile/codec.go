package pagefile

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// Codec compresses and decompresses sections. One is shared by all goroutines
// of a store; it starts none of its own.
type Codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder

	gently bool // pieces are checked and decoded where they are read
}

// Gently returns the same codec for reads that use one processor each, because the other
// processors compute what somebody waits for.
func (c *Codec) Gently() *Codec {
	return &Codec{enc: c.enc, dec: c.dec, gently: true}
}

// maxDecodedBytes is the largest section any header can describe. The limit
// that matters is the capacity given to decode; this one is zstd's own.
const maxDecodedBytes = uint64(MaxTokens) * maxRowBytes

var NewCodec = sync.OnceValues(func() (*Codec, error) {
	// Rows hardly ever repeat, but the exponents in them are skewed: all there
	// is to gain is in the literals, which zstd would leave alone by itself.
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

// Encode returns rows compressed, or nil when that would not make them smaller.
func (c *Codec) Encode(rows []byte) []byte {
	out := c.enc.EncodeAll(rows, make([]byte, 0, len(rows)))
	if len(out) >= len(rows) {
		return nil
	}
	return out
}

// Decode fills rows from stored. It writes nothing beyond rows, whatever stored
// claims, and returns ErrDamaged unless it fills rows exactly.
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

// eachSection runs fn for sections 0 … n-1 on all processors and returns the
// first error, after which no more are begun: a section that decompresses to too
// much costs half as much memory again before it is found out.
func eachSection(n int, fn func(i int) error) error {
	var g errgroup.Group
	var failed atomic.Bool
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			if failed.Load() {
				return nil // the page is lost already
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
