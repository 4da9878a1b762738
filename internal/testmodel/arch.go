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

// architecture is one that this package writes; each lives in a file of its own.
type architecture struct {
	// layout must accept any Shape with defaults filled in, valid or not, because
	// Validate counts parameters with it.
	layout func(Shape) layout
	// window is the default of Shape.Window, 0 if no layer has a sliding window.
	window int
	// ffnPerEmbed gives the default of Shape.FFN.
	ffnPerEmbed int
}

var architectures = map[string]architecture{
	"gemma3": {layout: gemma3, window: defaultWindow, ffnPerEmbed: ffnPerEmbed},
	"gptoss": {layout: gptoss, window: defaultWindow, ffnPerEmbed: ffnPerEmbedOfExperts},
	"llama":  {layout: llama, ffnPerEmbed: ffnPerEmbed},
	"qwen3":  {layout: qwen3, ffnPerEmbed: ffnPerEmbed},
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

// transformer returns what most architectures have in common: an embedding,
// gated feed-forward layers, grouped-query attention and an output matrix of its
// own. scoreGain multiplies the query and the key projection each.
func transformer(s Shape, scoreGain float64) layout {
	l := base(s)
	for i := range s.Layers {
		l.matrices = append(l.matrices, attentionBlock(s, i, scoreGain)...)
		l.matrices = append(l.matrices, feedForward(s, i)...)
	}
	return l
}

// base is everything outside the layers.
func base(s Shape) layout {
	return layout{
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
			{name: embeddingTensor, in: s.Embed, out: s.Vocab, scale: 1, firstColumn: constantColumn(biasValue)},
			{name: "output_norm.weight", in: s.Embed, norm: 1},
			{name: "output.weight", in: s.Embed, out: s.Vocab, scale: logitRMS * perInput(s), firstColumn: outputBias(s)},
		},
	}
}

// attentionBlock is the attention of layer i.
func attentionBlock(s Shape, i int, scoreGain float64) []matrix {
	queryWidth, kvWidth := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	gain := layerGain(s, attentionVariance) / attentionMixRMS / math.Sqrt(float64(queryWidth))
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "attn_q"), in: s.Embed, out: queryWidth, scale: scoreGain * perInput(s)},
		{name: block(i, "attn_k"), in: s.Embed, out: kvWidth, scale: scoreGain * perInput(s)},
		{name: block(i, "attn_v"), in: s.Embed, out: kvWidth, scale: perInput(s)},
		{name: block(i, "attn_output"), in: queryWidth, out: s.Embed, scale: gain, zero: 1},
	}
}

// feedForward is the gated feed-forward part of layer i.
func feedForward(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / gatedRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "ffn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_gate"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_up"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down"), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}

const embeddingTensor = "token_embd.weight"

// block names a tensor of layer i.
func block(i int, tensor string) string { return fmt.Sprintf("blk.%d.%s.weight", i, tensor) }

// perInput keeps the variance of what a matrix reads from the residual stream.
func perInput(s Shape) float64 { return 1 / math.Sqrt(float64(s.Embed)) }

// layerGain is the RMS of one layer's part of a variance that all add together.
func layerGain(s Shape, variance float64) float64 {
	return math.Sqrt(variance / float64(s.Layers))
}

// headNorms are the norms of each head's query and key in layer i, of which each
// has half of the sharpness of attention.
func headNorms(s Shape, i int) []matrix {
	gain := float32(math.Sqrt(attentionSharpness))
	return []matrix{
		{name: block(i, "attn_q_norm"), in: s.HeadDim, norm: gain},
		{name: block(i, "attn_k_norm"), in: s.HeadDim, norm: gain},
	}
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
