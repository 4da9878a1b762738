package testmodel

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/x448/float16"
)

// matrix is a tensor to write: out rows of in weights, or in weights if out is 0, for each
// of experts. Weights are uniform with mean norm and standard deviation scale. Weights are
// f32 if norm or f32 is set, else f16.
type matrix struct {
	name    string
	in, out int
	experts int   // 0: the tensor has no dimension of experts
	dims    []int // the tensor's dimensions if they are not in, out and experts
	scale   float64
	norm    float32
	f32     bool
	kv      int // elements that a token adds to the K/V caches

	// zero is a number of first dimensions of the residual stream to clear: weights of a norm, so that later
	// matrices do not read these dimensions, or rows of a matrix, so that the matrix does not write to them.
	zero int
	// reads, if set, clears all columns except the first `reads`.
	reads int
	// identity has each row be 1 in its own column, and 0 elsewhere.
	identity bool
	// route, if set, is the number of columns after the first that are ±scale each, with the
	// drawn weight's sign, except the last: that one is scale times routeBias of the row.
	route     int
	routeBias func(row int) float64
	// firstColumn, if set, gives the first weight of each row.
	firstColumn func(row int) float32
	// hand, if set, holds all weights.
	hand *handSet
}

func (m matrix) elements() int { return m.in * m.rows() }

// rows counts the rows of all experts.
func (m matrix) rows() int { return max(m.out, 1) * max(m.experts, 1) }

// tensor turns m into a tensor for upstream's GGUF writer. Each tensor has its own random stream, so that its
// bytes depend on the seed and its name and not on the order of writing: tensors are written in parallel.
func (m matrix) tensor(seed int64) *ggml.Tensor {
	t := &ggml.Tensor{Name: m.name, Kind: uint32(ggml.TensorTypeF16), WriterTo: matrixWriter{m, seed}}
	if m.f32 || m.norm != 0 {
		t.Kind, t.WriterTo = uint32(ggml.TensorTypeF32), f32Writer{m, seed}
	}
	dims := m.dims
	if dims == nil {
		dims = []int{m.in, m.out, m.experts}
	}
	for _, size := range dims { // the innermost first
		if size > 0 {
			t.Shape = append(t.Shape, uint64(size))
		}
	}
	return t
}

// f32Writer writes a matrix's weights as f32: norms, biases, gates, and the few matrices
// that the engine requires in f32. All are small.
type f32Writer matrixWriter

func (m f32Writer) WriteTo(w io.Writer) (int64, error) {
	weights := make([]float32, m.elements())
	levels, random := uniformLevels(m.scale), m.random(m.seed)
	for i := range weights {
		weights[i] = m.norm + float16.Frombits(levels[uint16(random.Uint64())]).Float32()
	}
	clear(weights[:min(m.zero, len(weights))])
	if err := binary.Write(w, binary.LittleEndian, weights); err != nil {
		return 0, fmt.Errorf("writing tensor %s: %w", m.name, err)
	}
	return int64(binary.Size(weights)), nil
}

// matrixWriter writes a matrix's weights as f16.
type matrixWriter struct {
	matrix
	seed int64
}

// bufferBytes is about the part of a matrix that is held in memory at a time.
const bufferBytes = 256 << 10

func (m matrixWriter) WriteTo(w io.Writer) (int64, error) {
	out := bufio.NewWriterSize(w, bufferBytes)
	levels, random := uniformLevels(m.scale), m.random(m.seed)
	weights := make([]uint16, m.in)
	for row := range m.rows() {
		if m.hand != nil {
			weights = m.hand.weights[row*m.in:][:m.in]
		} else {
			m.draw(weights, row, levels, random)
		}
		_ = binary.Write(out, binary.LittleEndian, weights) // Flush returns the error
	}
	if err := out.Flush(); err != nil {
		return 0, fmt.Errorf("writing tensor %s: %w", m.name, err)
	}
	return int64(m.elements()) * f16Bytes, nil
}

// draw draws one row, four weights from each random number.
func (m matrixWriter) draw(weights []uint16, row int, levels *[1 << 16]uint16, random *rand.PCG) {
	var bits uint64
	for i := range weights {
		if i%4 == 0 {
			bits = random.Uint64()
		}
		weights[i] = levels[uint16(bits)]
		bits >>= 16
	}
	if m.reads > 0 {
		clear(weights[min(m.reads, m.in):])
	}
	for column := 1; column <= m.route; column++ {
		v := m.scale
		switch {
		case column == m.route:
			v *= m.routeBias(row)
		case float16.Frombits(weights[column]).Float32() < 0:
			v = -v
		}
		weights[column] = half(v)
	}
	switch {
	case m.identity:
		clear(weights)
		weights[row] = half(1)
	case row%m.out < m.zero:
		clear(weights)
	case m.firstColumn != nil:
		weights[biasDim] = half(float64(m.firstColumn(row)))
	}
}

// half is the f16 of a number.
func half(v float64) uint16 { return float16.Fromfloat32(float32(v)).Bits() }

func (m matrix) random(seed int64) *rand.PCG {
	h := fnv.New64a()
	io.WriteString(h, m.name) //nolint:errcheck // a hash never fails
	return rand.NewPCG(uint64(seed), h.Sum64())
}

// uniformLevels maps 16 random bits to an f16 weight, uniform over an interval symmetric around 0. A uniform
// distribution needs only a multiplication, which gives the same bits on every CPU; a normal one does not.
func uniformLevels(deviation float64) *[1 << 16]uint16 {
	var levels [1 << 16]uint16
	if deviation == 0 {
		return &levels
	}
	step := deviation * math.Sqrt(3) / (1 << 15)
	for i := range levels {
		levels[i] = half((float64(i) - (1<<16-1)/2.0) * step)
	}
	return &levels
}
