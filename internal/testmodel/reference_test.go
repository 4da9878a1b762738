package testmodel

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// reference computes upstream's qwen3 model, read from a file, in float64 and in the
// plainest way. reference is for attention-only models with few nonzero weights;
// feed-forward layers are not supported.
type reference struct {
	embedding, output   sparse
	outputNorm          []float64
	layers              []referenceLayer
	heads, kvHeads, dim int
	epsilon             float64
	turns               []float64 // radians per token of each rotary pair
	cache               rounding  // rounding of queries, keys and values
}

type referenceLayer struct {
	norm, queryNorm, keyNorm  []float64
	query, key, value, output sparse
}

// sparse is a matrix as the nonzero weights of each row.
type sparse [][]struct {
	column int
	weight float64
}

func (m sparse) multiply(x []float64) []float64 {
	y := make([]float64, len(m))
	for r, row := range m {
		for _, w := range row {
			y[r] += w.weight * x[w.column]
		}
	}
	return y
}

func readReference(t *testing.T, path string) *reference {
	t.Helper()
	kv := decode(t, path).KV()
	matrix := func(name string) sparse { return readSparse(t, path, name+".weight") }
	norm := func(name string) []float64 { return readNorm(t, path, name+".weight") }
	m := &reference{
		embedding: matrix("token_embd"), output: matrix("output"), outputNorm: norm("output_norm"),
		heads: int(kv.HeadCountMax()), kvHeads: int(kv.HeadCountKVMin()), dim: int(kv.EmbeddingHeadCountK()),
		epsilon: float64(kv.Float("attention.layer_norm_rms_epsilon")),
		cache:   exactly,
	}
	m.setRopeBase(float64(kv.Float("rope.freq_base")))
	for i := range kv.BlockCount() {
		block := fmt.Sprintf("blk.%d.", i)
		for _, row := range matrix(block + "ffn_down") {
			require.Empty(t, row, "the reference has no feed-forward layers")
		}
		m.layers = append(m.layers, referenceLayer{
			norm: norm(block + "attn_norm"), queryNorm: norm(block + "attn_q_norm"), keyNorm: norm(block + "attn_k_norm"),
			query: matrix(block + "attn_q"), key: matrix(block + "attn_k"),
			value: matrix(block + "attn_v"), output: matrix(block + "attn_output"),
		})
	}
	return m
}

func (m *reference) setRopeBase(base float64) {
	m.turns = make([]float64, m.dim/2)
	for i := range m.turns {
		m.turns[i] = math.Pow(base, -2*float64(i)/float64(m.dim))
	}
}

// with returns m with another cache type.
func (m *reference) with(cache rounding) *reference {
	other := *m
	other.cache = cache
	return &other
}

func readSparse(t *testing.T, path, name string) sparse {
	t.Helper()
	rows := readF16(t, path, name)
	m := make(sparse, len(rows))
	for r, row := range rows {
		for c, weight := range row {
			if weight != 0 {
				m[r] = append(m[r], struct {
					column int
					weight float64
				}{c, float64(weight)})
			}
		}
	}
	return m
}

func readNorm(t *testing.T, path, name string) []float64 {
	t.Helper()
	tensors := decode(t, path).Tensors()
	items := tensors.Items(name)
	require.Len(t, items, 1, name)
	require.Equal(t, uint32(ggml.TensorTypeF32), items[0].Kind)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw = raw[tensors.Offset+items[0].Offset:][:items[0].Size()]
	weights := make([]float64, items[0].Shape[0])
	for i := range weights {
		weights[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
	}
	return weights
}

// embed returns a token's row of the embedding.
func (m *reference) embed(token int32) []float64 {
	h := make([]float64, len(m.outputNorm))
	for _, w := range m.embedding[token] {
		h[w.column] = w.weight
	}
	return h
}

func (m *reference) normalize(x, weights []float64) []float64 {
	squares := 0.0
	for _, v := range x {
		squares += v * v
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+m.epsilon)
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * scale * weights[i]
	}
	return y
}

// split cuts a projection into heads and normalizes each.
func (m *reference) split(projection, norm []float64) [][]float64 {
	var heads [][]float64
	for ; len(projection) > 0; projection = projection[m.dim:] {
		heads = append(heads, m.normalize(projection[:m.dim], norm))
	}
	return heads
}

// rotate returns a head rotated to a position and rounded.
func (m *reference) rotate(head []float64, position int) []float64 {
	rotated := make([]float64, m.dim)
	for i := range m.dim / 2 {
		x, y := head[i], head[i+m.dim/2]
		if x == 0 && y == 0 {
			continue
		}
		sin, cos := math.Sincos(float64(position) * m.turns[i])
		rotated[i], rotated[i+m.dim/2] = x*cos-y*sin, x*sin+y*cos
	}
	m.cache(rotated)
	return rotated
}

// row holds the keys and values of a position by head; keys are not rotated yet.
type row struct{ keys, values [][]float64 }

func (m *reference) row(layer int, h []float64) row {
	l := m.layers[layer]
	h = m.normalize(h, l.norm)
	r := row{keys: m.split(l.key.multiply(h), l.keyNorm)}
	for values := l.value.multiply(h); len(values) > 0; values = values[m.dim:] {
		m.cache(values[:m.dim])
		r.values = append(r.values, values[:m.dim])
	}
	return r
}

// attend returns a layer's addition to h, the residual stream at a position, from the rows
// up to that position.
func (m *reference) attend(layer, position int, h []float64, rows func(int) row) []float64 {
	l := m.layers[layer]
	queries := m.split(l.query.multiply(m.normalize(h, l.norm)), l.queryNorm)
	means := make([]softmaxMean, m.heads)
	for i := range means {
		queries[i] = m.rotate(queries[i], position)
		means[i].mean = make([]float64, m.dim)
	}
	for p := range position + 1 {
		r := rows(p)
		for kvHead := range m.kvHeads {
			key := m.rotate(r.keys[kvHead], p)
			group := m.heads / m.kvHeads
			for head := kvHead * group; head < (kvHead+1)*group; head++ {
				score := 0.0
				for i, q := range queries[head] {
					score += q * key[i]
				}
				means[head].add(score/math.Sqrt(float64(m.dim)), r.values[kvHead])
			}
		}
	}
	var mixed []float64
	for _, mean := range means {
		mixed = append(mixed, mean.mean...)
	}
	return l.output.multiply(mixed)
}

// softmaxMean is a mean of values with weights e^score.
type softmaxMean struct {
	max, weight float64
	mean        []float64
}

func (s *softmaxMean) add(score float64, value []float64) {
	if s.weight == 0 {
		s.max = score
	}
	if score > s.max {
		s.weight *= math.Exp(s.max - score)
		s.max = score
	}
	weight := math.Exp(score - s.max)
	s.weight += weight
	for i, v := range value {
		s.mean[i] += (v - s.mean[i]) * weight / s.weight
	}
}

// logits computes the whole model for the last token.
func (m *reference) logits(tokens []int32) []float64 {
	streams := make([][]float64, len(tokens))
	for p, token := range tokens {
		streams[p] = m.embed(token)
	}
	for layer := range m.layers {
		rows := make([]row, len(tokens))
		for p, h := range streams {
			rows[p] = m.row(layer, h)
			added := m.attend(layer, p, h, func(i int) row { return rows[i] })
			streams[p] = add(h, added)
		}
	}
	return m.read(streams[len(tokens)-1])
}

// logitsAcross computes the logits of the last token for a model of two layers and a long
// text. Except at the given positions and the last one, it assumes that layer 0 writes as if
// the text began with the previous token.
func (m *reference) logitsAcross(tokens []int32, positions ...int) []float64 {
	last := len(tokens) - 1
	rows := make(map[int32]row)
	for _, token := range tokens {
		if _, ok := rows[token]; !ok {
			rows[token] = m.row(0, m.embed(token))
		}
	}
	after := func(p, position int, row func(int) row) []float64 {
		h := m.embed(tokens[p])
		return add(h, m.attend(0, position, h, row))
	}
	computed := make(map[int][]float64)
	for _, p := range append(positions, last) {
		computed[p] = after(p, p, func(i int) row { return rows[tokens[i]] })
	}
	stream := func(p int) []float64 {
		if h, ok := computed[p]; ok {
			return h
		}
		return after(p, 1, func(i int) row { return rows[tokens[max(p-1+i, 0)]] })
	}
	return m.read(add(computed[last], m.attend(1, last, computed[last], func(p int) row { return m.row(1, stream(p)) })))
}

func (m *reference) read(h []float64) []float64 {
	return m.output.multiply(m.normalize(h, m.outputNorm))
}

func add(a, b []float64) []float64 {
	sum := make([]float64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

// lead returns the token with the greatest logit, and its lead.
func lead(logits []float64) (token int32, margin float64) {
	best, second := math.Inf(-1), math.Inf(-1)
	for i, logit := range logits {
		if logit > best {
			token, best, second = int32(i), logit, best
		} else {
			second = max(second, logit)
		}
	}
	return token, best - second
}

// rounding rounds the values of a head to a cache type.
type rounding func(head []float64)

func exactly([]float64) {}

func toF16(head []float64) {
	for i, v := range head {
		head[i] = float64(float16.Fromfloat32(float32(v)).Float32())
	}
}

// toQ8 is q8_0: blocks of 32 integers up to 127 with an f16 scale.
func toQ8(head []float64) {
	const block = 32
	for ; len(head) > 0; head = head[block:] {
		largest := 0.0
		for _, v := range head[:block] {
			largest = max(largest, math.Abs(v))
		}
		if largest == 0 {
			continue
		}
		scale := float64(float16.Fromfloat32(float32(largest / 127)).Float32())
		for i, v := range head[:block] {
			head[i] = math.Round(v*127/largest) * scale
		}
	}
}
