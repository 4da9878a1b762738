package testmodel

import (
	"fmt"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// layout is what an architecture adds to the tokenizer: its metadata, without
// the architecture's name in front of the keys, and its tensors.
type layout struct {
	metadata ggml.KV
	matrices []matrix
}

// architectures holds one constructor per supported architecture; each lives in
// a file of its own. A constructor must accept any Shape with defaults filled
// in, valid or not, because Validate counts parameters with it.
var architectures = map[string]func(Shape) layout{
	"llama": llama,
	"qwen3": qwen3,
}

const (
	ropeBase   = 1e6
	rmsEpsilon = 1e-6
)

// Scales of the random weights. The residual stream starts at variance 1 (the
// token's embedding) and ends at 1 + attentionVariance + ffnVariance.
const (
	attentionSharpness = 2.5 // standard deviation of q·k/√d before the softmax
	attentionVariance  = 2.0 // what all attention layers add together
	ffnVariance        = 1.0 // what all feed-forward layers add together
	attentionMixRMS    = 0.6 // of a softmax-weighted mean of values of RMS 1
	gatedRMS           = 0.6 // of silu(g)·u for g and u of variance 1
	logitRMS           = 1.0
)

// Dimension 0 of the residual stream is a constant, see the package comment.
const (
	biasDim         = 0
	biasValue       = 4.0
	suppressedLogit = -40.0
)

// residualRMS is the expected RMS of the residual stream after the last layer,
// by which the final norm divides.
func residualRMS(s Shape) float64 {
	return math.Sqrt(1 + attentionVariance + ffnVariance + biasValue*biasValue/float64(s.Embed))
}

// transformer returns what qwen3 and llama have in common: an embedding, gated
// feed-forward layers, grouped-query attention and an output matrix of its own.
// scoreGain multiplies the query and the key projection each.
func transformer(s Shape, scoreGain float64) layout {
	queryWidth, kvWidth := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	perInput := 1 / math.Sqrt(float64(s.Embed))
	layers := math.Sqrt(float64(s.Layers))
	attentionGain := math.Sqrt(attentionVariance) / layers / attentionMixRMS / math.Sqrt(float64(queryWidth))
	ffnGain := math.Sqrt(ffnVariance) / layers / gatedRMS / math.Sqrt(float64(s.FFN))

	l := layout{
		metadata: ggml.KV{
			"block_count":                      uint32(s.Layers),
			"context_length":                   uint32(s.Context),
			"embedding_length":                 uint32(s.Embed),
			"feed_forward_length":              uint32(s.FFN),
			"attention.head_count":             uint32(s.Heads),
			"attention.head_count_kv":          uint32(s.KVHeads),
			"attention.key_length":             uint32(s.HeadDim),
			"attention.value_length":           uint32(s.HeadDim),
			"attention.layer_norm_rms_epsilon": float32(rmsEpsilon),
			"rope.freq_base":                   float32(ropeBase),
			"rope.dimension_count":             uint32(s.HeadDim),
		},
		matrices: []matrix{
			{name: "token_embd.weight", in: s.Embed, out: s.Vocab, scale: 1, firstColumn: constantColumn(biasValue)},
			{name: "output_norm.weight", in: s.Embed, norm: 1},
			{name: "output.weight", in: s.Embed, out: s.Vocab, scale: logitRMS * perInput, firstColumn: outputBias(s)},
		},
	}
	for i := range s.Layers {
		block := func(tensor string) string { return fmt.Sprintf("blk.%d.%s.weight", i, tensor) }
		l.matrices = append(l.matrices,
			matrix{name: block("attn_norm"), in: s.Embed, norm: 1, zeroFirst: true},
			matrix{name: block("attn_q"), in: s.Embed, out: queryWidth, scale: scoreGain * perInput},
			matrix{name: block("attn_k"), in: s.Embed, out: kvWidth, scale: scoreGain * perInput},
			matrix{name: block("attn_v"), in: s.Embed, out: kvWidth, scale: perInput},
			matrix{name: block("attn_output"), in: queryWidth, out: s.Embed, scale: attentionGain, zeroFirst: true},
			matrix{name: block("ffn_norm"), in: s.Embed, norm: 1, zeroFirst: true},
			matrix{name: block("ffn_gate"), in: s.Embed, out: s.FFN, scale: perInput},
			matrix{name: block("ffn_up"), in: s.Embed, out: s.FFN, scale: perInput},
			matrix{name: block("ffn_down"), in: s.FFN, out: s.Embed, scale: ffnGain, zeroFirst: true},
		)
	}
	return l
}

// constantColumn is a first column that holds v for every token.
func constantColumn(v float32) func(int) float32 {
	return func(int) float32 { return v }
}

// outputBias is a first column that, multiplied with the constant dimension,
// leaves printable tokens alone and gives every other one suppressedLogit.
func outputBias(s Shape) func(int) float32 {
	weight := float32(suppressedLogit * residualRMS(s) / biasValue)
	vocabulary := newVocabulary(s.Vocab)
	return func(token int) float32 {
		if vocabulary.printable[token] {
			return 0
		}
		return weight
	}
}
