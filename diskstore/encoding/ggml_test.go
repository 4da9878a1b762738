package encoding

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// ggmlRows are rows of 64 numbers: of usual K/V, of every exponent, of few values, ties among them,
// and of every f16 up to 32,768.
func ggmlRows() []byte {
	rows := gaussian("f16", 512, 64, 21)
	r := rand.New(rand.NewPCG(5, 5))
	put := func(x uint16) { rows = binary.LittleEndian.AppendUint16(rows, x|uint16(r.IntN(2))<<15) }
	for range 64 * 512 {
		put(uint16(r.IntN(0x7800)))
	}
	for range 512 {
		shift := r.IntN(10)
		for range 64 {
			put(float16.Fromfloat32(float32(r.IntN(255)) / float32(int(2)<<shift)).Bits())
		}
	}
	for x := range uint16(0x7800) {
		put(x)
	}
	return rows
}

// ggmlBlocks returns the blocks of a section as ggml has them in memory.
func ggmlBlocks(t *testing.T, id ID, stored []byte, n int) []byte {
	var blocks []byte
	for _, b := range refBlocks(t, id, stored, n) {
		for u := range b.numbers / 32 {
			blocks = append(blocks, b.planes[0][u], b.planes[1][u])
			if id == Q4_0 {
				blocks = append(blocks, b.planes[2][16*u:16*u+16]...)
				continue
			}
			for i := range 32 {
				blocks = append(blocks, byte(16*(refCode(b.planes[2], 32*u+i)-8)+refCode(b.planes[3], 32*u+i)))
			}
		}
	}
	return blocks
}

// TestBlocksAreThoseOfGGML: the sums are of blocks that ggml's quantize_row_q8_0_ref and
// quantize_row_q4_0_ref (ggml-quants.c in Ollama v0.16.1, compiled without contraction) gave for
// the same rows.
func TestBlocksAreThoseOfGGML(t *testing.T) {
	rows := ggmlRows()
	for id, want := range map[ID]string{
		Q8_0: "100af651933f70476d95cd0a5fcfda9114bd22a968ecf700eef5ed2d97887ccb",
		Q4_0: "83f20a3612be3c43bc0a4dae6cc59fcb09d856159de89a772d81d82654c00fcf",
	} {
		check := func() {
			stored, err := newCoder(t).Lossy(id, rows, Shape{RowBytes: 128})
			require.NoError(t, err)
			sum := sha256.Sum256(ggmlBlocks(t, id, stored, len(rows)))
			require.Equal(t, want, hex.EncodeToString(sum[:]), id)
		}
		check()
		again := plain()
		check()
		again()
	}
}
