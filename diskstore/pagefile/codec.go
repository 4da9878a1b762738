package pagefile

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/encoding"
)

// Codec compresses and decompresses sections. All goroutines of a store share one Codec, which
// starts no goroutine of its own.
type Codec struct {
	coder *encoding.Coder

	gently bool // pieces are checked and decoded on the calling goroutine
}

// Gently returns the same codec for reads that use one processor each and leave the other
// processors to slots that compute.
func (c *Codec) Gently() *Codec {
	return &Codec{coder: c.coder, gently: true}
}

// maxDecodedBytes is the size of the largest section that a header can describe, for zstd's
// own limit. The capacity given to decode is the effective limit.
const maxDecodedBytes = uint64(MaxTokens) * maxRowBytes

var NewCodec = sync.OnceValues(func() (*Codec, error) {
	coder, err := encoding.NewCoder(maxDecodedBytes)
	if err != nil {
		return nil, err
	}
	return &Codec{coder: coder}, nil
})

// Shape describes the section's rows to a Coder.
func (s Section) Shape() encoding.Shape {
	if !s.Kind.PerToken() {
		return encoding.Shape{}
	}
	return encoding.Shape{RowBytes: int(s.RowBytes)}
}

// Encode returns the rows of a section in the encoding that makes them smallest, or EncodingRaw
// and nil when none makes them smaller by enough to be worth decoding.
func (c *Codec) Encode(rows []byte, s Section) (Encoding, []byte) {
	return c.coder.Lossless(rows, s.Shape())
}

// EncodeLossy returns the rows of a section, which are f16, in a lossy encoding. An error says why
// the section has to stay lossless: it is neither K nor V, or encoding.Coder.Lossy refuses its rows.
func (c *Codec) EncodeLossy(e Encoding, rows []byte, s Section) ([]byte, error) {
	if s.Kind != KindK && s.Kind != KindV {
		return nil, fmt.Errorf("encode section of kind %v as %v: only K and V may lose bits; keep it lossless", s.Kind, e)
	}
	return c.coder.Lossy(e, rows, s.Shape())
}

// Decode fills rows from stored. For any content of stored, Decode writes nothing beyond rows
// and returns ErrDamaged unless stored fills rows exactly.
func (c *Codec) Decode(e Encoding, stored, rows []byte) error {
	if err := c.coder.Decode(e, stored, rows); err != nil {
		return Damaged("%v", err)
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
