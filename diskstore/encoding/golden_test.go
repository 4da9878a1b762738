package encoding

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// golden are sections of 40 rows of 48 numbers as this version writes them: every later version has to
// read them.
var golden = map[string]struct {
	width int    // of a number, in bytes
	sum   string // SHA-256 of the rows, in hexadecimal
}{
	"f16":             {2, f16Sum},
	"f16-bases":       {2, f16Sum},
	"f16-apart":       {2, f16Sum},
	"f16-apart-bases": {2, f16Sum},
	"bf16-rotated":    {2, bf16Sum},
	"bf16-all":        {2, bf16Sum},
	"f32":             {4, f32Sum},
	"f32-bases":       {4, f32Sum},
	"same-byte-and-1": {2, sameSum},
}

const (
	f16Sum  = "8ab19c2d40cfef3cdb0991c23413ed22f370b4dab4b10dd7c9bc35b79ca4c8b6"
	bf16Sum = "0928912abe65db59f4516b509971bd22e61594de540feb4c508549f295fa3390"
	f32Sum  = "ed7ec0eee4e44a2ff21d0d3b8e6c53c816a40bca99edad1a8896782f3200986e"
	sameSum = "a8eac8b0d3b1fde368813438dd5ba415a796fd6dd0a2a42fb6a5a2dfb2429576"
)

// goldenLossy are sections of keys(70, 128), in every arrangement, with the sums of the decoded rows.
var goldenLossy = map[string]string{
	"q8_0-0": "1d54dcc77beca8219e1c6bbecd78be9c4acec3ee25d111b192895a5b50030ffb",
	"q4_0-0": "e3d7f4605bccecf914824fdb1ca0fa57845ec2e280084969422cc67e4167063d",
	"int4-0": "a5944b3e7e538197d1e0e0b815ce0c7045dcf9db63f9e68c676aa654b1d024be",
	"int4-1": "80ebe4428c54704a28309b99faaebba7690a953780855261c2f709cd115ccd8f",
	"int4-2": "073766f54989ecfa0140fafb9741f8a1d9a6f45fd364693473aaca8f3fc5cc8e",
	"int4-3": "6fab26be0de6918ab6e18958bff56fd2ddb435cf18a7bbc0c56bd185d42442d4",
}

func TestGoldenLossy(t *testing.T) {
	c := newCoder(t)
	rows := keys(70, 128)
	for _, way := range waysOf(rows, 256) {
		name := fmt.Sprintf("%v-%d", way.id, way.arrangement)
		t.Run(name, func(t *testing.T) {
			stored, err := os.ReadFile(filepath.Join("testdata", "golden", name+".lossy"))
			require.NoError(t, err)
			got := decoded(t, c, way.id, stored, len(rows))
			sum := sha256.Sum256(got)
			require.Equal(t, goldenLossy[name], hex.EncodeToString(sum[:]))
		})
	}
}

func TestGolden(t *testing.T) {
	c := newCoder(t)
	for name, g := range golden {
		t.Run(name, func(t *testing.T) {
			stored, err := os.ReadFile(filepath.Join("testdata", "golden", name+".split"))
			require.NoError(t, err)
			rows := decoded(t, c, Split, stored, 40*48*g.width)
			sum := sha256.Sum256(rows)
			require.Equal(t, g.sum, hex.EncodeToString(sum[:]))
		})
	}
}

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
