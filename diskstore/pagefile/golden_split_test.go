package pagefile_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// The second reader of split sections follows docs/page-format.md and RFC 8878, and shares no code
// with package encoding, also none of its library for Huffman codes.

var errSplit = errors.New("split section")

// readSplit decodes a split section of n decoded bytes.
func readSplit(stored []byte, n int) (rows []byte, err error) {
	defer func() { // an index or a slice beyond the section
		if e := recover(); e != nil {
			rows, err = nil, errSplit
		}
	}()
	f := &fields{stored}
	width, rotate, apart, reserved, channels := int(f.u8()), int(f.u8()), int(f.u8()), f.u8(), int(f.u32())
	row := width * channels
	switch {
	case width != 2 && width != 4, rotate > 1, rotate == 1 && width != 2, apart != 0 && (apart != 2 || width != 2), reserved != 0, n%width != 0,
		row > 131072, channels > 0 && n%row != 0:
		return nil, errSplit
	}
	bases := f.take(uint64(channels))
	block := 131072
	if channels > 0 {
		block = 131072 / row * row
	}
	for len(rows) < n {
		rows = append(rows, readSplitBlock(f, min(block, n-len(rows))/width, width, rotate, apart > 0, bases)...)
	}
	if len(f.p) > 0 {
		return nil, errSplit
	}
	return rows, nil
}

// readSplitBlock decodes a block of some numbers. It panics for a block that is damaged, as all below.
func readSplitBlock(f *fields, numbers, width, rotate int, apart bool, bases []byte) []byte {
	bytes := []int{numbers, numbers, numbers, numbers}[:width] // of each plane
	if apart {
		bytes = []int{numbers, (numbers + 31) / 32 * 8, numbers}
	}
	sizes := &fields{f.take(uint64(4 * len(bytes)))}
	planes := make([][]byte, len(bytes))
	for i, bytes := range bytes {
		entry := sizes.u32()
		stored := f.take(uint64(entry >> 2))
		switch entry & 3 {
		case 0:
			planes[i] = stored
		case 1:
			if len(stored) >= bytes {
				panic(errSplit)
			}
			planes[i] = readLiterals(stored, bytes)
		case 2:
			if len(stored) != 1 {
				panic(errSplit)
			}
			for range bytes {
				planes[i] = append(planes[i], stored[0])
			}
		}
		if len(planes[i]) != bytes {
			panic(errSplit)
		}
	}
	if apart {
		planes = [][]byte{planes[0], joined(planes[2], planes[1])}
	}
	var rows []byte
	for at := range numbers {
		number := uint32(0)
		for i, plane := range planes {
			b := plane[at]
			if i == width-1 && len(bases) > 0 {
				b += bases[at%len(bases)]
			}
			number |= uint32(b) << (8 * i)
		}
		if width == 2 {
			rows = binary.LittleEndian.AppendUint16(rows, bits.RotateLeft16(uint16(number), -rotate))
		} else {
			rows = binary.LittleEndian.AppendUint32(rows, number)
		}
	}
	return rows
}

// joined gives each byte its two lowest bits back.
func joined(high, apart []byte) (out []byte) {
	for i, b := range high {
		pair := apart[i/32*8+i%8] >> (i % 32 / 8 * 2)
		out = append(out, b|pair&3)
	}
	return out
}

// backwards reads bits from the end of a stream, whose last byte has a one above the first bit. Before
// the beginning are zeros.
type backwards struct {
	p    []byte
	left int // bits that are not read; below 0 after a read of more than there are
}

func newBackwards(p []byte) *backwards {
	last := p[len(p)-1]
	if last == 0 {
		panic(errSplit)
	}
	return &backwards{p, 8*(len(p)-1) + bits.Len8(last) - 1}
}

func (b *backwards) read(n int) int {
	value := 0
	for range n {
		b.left--
		value <<= 1
		if b.left >= 0 {
			value |= int(b.p[b.left/8]>>(b.left%8)) & 1
		}
	}
	return value
}

// readLiterals decodes n bytes in Huffman codes: RFC 8878, section 3.1.1.3.1.6, with the jump table.
func readLiterals(stored []byte, n int) []byte {
	tree, size := readTree(stored)
	f := &fields{stored[size:]}
	sizes := []int{int(f.u16()), int(f.u16()), int(f.u16())}
	var out []byte
	for i := range 4 {
		stream, want := f.p, n-len(out)
		if i < 3 {
			stream, want = f.take(uint64(sizes[i])), (n+3)/4
		}
		in := newBackwards(stream)
		for range want {
			out = append(out, tree.next(in))
		}
		if in.left != 0 {
			panic(errSplit)
		}
	}
	return out
}

// tree has the codes by their length and value.
type tree map[[2]int]byte

func (t tree) next(in *backwards) byte {
	code := 0
	for length := 1; length <= 11; length++ {
		code = code<<1 | in.read(1)
		if symbol, ok := t[[2]int{length, code}]; ok {
			return symbol
		}
	}
	panic(errSplit)
}

// readTree decodes a Huffman tree description, and returns its size: section 4.2.1.
func readTree(stored []byte) (tree, int) {
	var weights []int
	size := 1 + int(stored[0])
	if stored[0] >= 128 { // four bits each
		count := int(stored[0]) - 127
		size = 1 + (count+1)/2
		for i := range count {
			weights = append(weights, int(stored[1+i/2]>>(4-4*(i%2)))&15)
		}
	} else {
		weights = readWeights(stored[1:size])
	}
	sum := 0
	for _, w := range weights {
		sum += 1 << w >> 1
	}
	longest := bits.Len(uint(sum))
	rest := 1<<longest - sum
	if longest > 11 || bits.OnesCount(uint(rest)) != 1 || len(weights) > 255 {
		panic(errSplit)
	}
	weights = append(weights, bits.Len(uint(rest)))
	codes, code := make(tree), 0
	for weight := 1; weight <= longest; weight++ { // of the longest codes the value is smallest
		for symbol, w := range weights {
			if w == weight {
				codes[[2]int{longest + 1 - weight, code >> (weight - 1)}] = byte(symbol)
				code += 1 << (weight - 1)
			}
		}
	}
	return codes, size
}

// fseState is a row of a decoding table.
type fseState struct{ symbol, bits, base int }

// readWeights decodes weights that are compressed with two FSE states in turns: section 4.2.1.2.
func readWeights(stored []byte) (weights []int) {
	table, accuracy, size := readFSETable(stored)
	in := newBackwards(stored[size:])
	states := [2]int{in.read(accuracy), in.read(accuracy)}
	for turn := 0; ; turn = 1 - turn {
		s := table[states[turn]]
		weights = append(weights, s.symbol)
		states[turn] = s.base + in.read(s.bits)
		if in.left < 0 { // the other state is the last
			return append(weights, table[states[1-turn]].symbol)
		}
	}
}

// readFSETable decodes a table description and builds the table: section 4.1.1.
func readFSETable(stored []byte) (table []fseState, accuracy, size int) {
	at := 0
	peek := func(n int) (value int) {
		for i := range n {
			value |= int(stored[(at+i)/8]>>((at+i)%8)) & 1 << i
		}
		return value
	}
	accuracy = peek(4) + 5
	at = 4
	if accuracy > 6 {
		panic(errSplit)
	}
	var shares []int
	for left := 1 << accuracy; left > 0; {
		n := bits.Len(uint(left + 1))
		short := 1<<n - 1 - (left + 1) // values below this take a bit less
		value := peek(n - 1)
		if at += n - 1; value >= short {
			value |= peek(1) << (n - 1)
			if at++; value >= 1<<(n-1) {
				value -= short
			}
		}
		share := value - 1
		shares = append(shares, share)
		left -= max(share, -share)
		for again := 3; share == 0 && again == 3; at += 2 {
			again = peek(2)
			shares = append(shares, make([]int, again)...)
		}
	}
	return fseTable(shares, accuracy), accuracy, (at + 7) / 8
}

// fseTable spreads symbols over a table by their shares.
func fseTable(shares []int, accuracy int) []fseState {
	size := 1 << accuracy
	table, next, end := make([]fseState, size), make([]int, len(shares)), size
	for symbol, share := range shares {
		if next[symbol] = share; share == -1 { // less than one
			end--
			table[end].symbol, next[symbol] = symbol, 1
		}
	}
	at := 0
	for symbol, share := range shares {
		for range share {
			table[at].symbol = symbol
			for again := true; again; again = at >= end {
				at = (at + size>>1 + size>>3 + 3) & (size - 1)
			}
		}
	}
	for i := range table {
		s := &table[i]
		s.bits = accuracy + 1 - bits.Len(uint(next[s.symbol]))
		s.base = next[s.symbol]<<s.bits - size
		next[s.symbol]++
	}
	return table
}

// splitRows returns rows of floats around 1, 2, … of one channel each, with the lowest bits zero.
func splitRows(kind string, seed uint64, channels, tokens, zero int, noise float64) (rows []byte, width int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range channels * tokens {
		number := math.Float32bits(float32(math.Exp(noise*rng.NormFloat64())*float64(i%channels+1))) >> zero << zero
		switch kind {
		case "f16":
			rows, width = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(math.Float32frombits(number)).Bits()), 2
		case "bf16":
			rows, width = binary.LittleEndian.AppendUint16(rows, uint16(number>>16)), 2
		default:
			rows, width = binary.LittleEndian.AppendUint32(rows, number), 4
		}
	}
	return rows, width
}

// TestSecondReaderReadsSplitSections: sections of many shapes, some of several blocks.
func TestSecondReaderReadsSplitSections(t *testing.T) {
	codec, err := pagefile.NewCodec()
	require.NoError(t, err)
	read := func(t require.TestingT, rows []byte, rowBytes int) (split bool) {
		e, stored := codec.Encode(rows, pagefile.Section{Kind: pagefile.KindK, RowBytes: uint32(rowBytes)})
		if e != pagefile.EncodingSplit {
			return false
		}
		got, err := readSplit(stored, len(rows))
		require.NoError(t, err)
		require.Equal(t, string(rows), string(got))
		return true
	}
	for _, kind := range []string{"f16", "bf16", "f32"} {
		t.Run(kind, func(t *testing.T) {
			rows, width := splitRows(kind, 1, 128, 64, 8, 0.01)
			require.True(t, read(t, rows, 128*width))
			rapid.Check(t, func(t *rapid.T) {
				channels := rapid.IntRange(1, 300).Draw(t, "channels")
				tokens := rapid.IntRange(1, 300).Draw(t, "tokens")
				noise := rapid.SampledFrom([]float64{0, 0.01, 1, 30}).Draw(t, "noise")
				zero := rapid.IntRange(0, 24).Draw(t, "zero bits")
				rows, width := splitRows(kind, rapid.Uint64().Draw(t, "seed"), channels, tokens, zero, noise)
				read(t, rows, channels*width)
			})
		})
	}
}
