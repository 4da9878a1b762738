package testmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ollama/ollama/fs/ggml"
)

// layout is an architecture without the tokenizer: its metadata, with keys that lack the
// architecture's name in front, and its tensors.
type layout struct {
	metadata ggml.KV
	matrices []matrix
}

// add adds matrices.
func (l *layout) add(matrices ...matrix) { l.matrices = append(l.matrices, matrices...) }

// part is a part of layer i, such as its attention.
type part func(s Shape, i int) []matrix

// stack is a model whose layers have the same parts.
func stack(s Shape, parts ...part) layout {
	l := base(s)
	for i := range s.Layers {
		for _, p := range parts {
			l.add(p(s, i)...)
		}
	}
	return l
}

// eachLayer lists what each layer has.
func eachLayer[T any](s Shape, has func(i int) T) (all []T) {
	for i := range s.Layers {
		all = append(all, has(i))
	}
	return all
}

// architecture is an architecture that this package writes.
type architecture struct {
	// since is the first release of Ollama with the architecture, empty if before v0.16.
	since  string
	layout func(Shape) layout
	// llamaCpp changes the layout to llama.cpp's, if that differs from Ollama's engine's.
	llamaCpp func(Shape, *layout)
	// llamaCppName is the architecture's name in a file for llama.cpp, if it differs.
	llamaCppName string
	// llamaCppOnly: Ollama's engine has no such architecture.
	llamaCppOnly bool
	// name is the architecture's name in the file, if it differs from Shape.Arch.
	name string
	// size gives the defaults of Layers, Embed, Heads, KVHeads and HeadDim.
	size Shape
	// ffnPerEmbed gives the default of Shape.FFN, 3 if 0; experts are narrow.
	ffnPerEmbed int
	// window is the default of Shape.Window, 0 if no layer has a window or chunks.
	window int
	// layersMin is the number of layers with which each kind occurs.
	layersMin int
	// headsFill: the engine assumes that heads × head-dim is embed.
	headsFill bool
}

// inFile is the architecture's name in the file of a Shape.
func (a architecture) inFile(s Shape) string {
	if s.LlamaCpp && a.llamaCppName != "" {
		return a.llamaCppName
	}
	return cmp.Or(a.name, s.Arch)
}

// of returns the layout of a Shape.
func (a architecture) of(s Shape) layout {
	l := a.layout(s)
	if s.LlamaCpp && a.llamaCpp != nil {
		a.llamaCpp(s, &l)
	}
	return l
}

// Sizes of models. Compact models take a few megabytes.
var (
	usual   = Shape{Layers: 8, Embed: 512, Heads: 8, KVHeads: 4, HeadDim: 64}
	compact = Shape{Layers: 4, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}
)

var architectures = map[string]architecture{
	"deepseek2":        {layout: deepseek2, llamaCpp: latentForLlamaCpp, size: latentSize, ffnPerEmbed: 1, layersMin: 2},
	"dflash":           {layout: dflash, llamaCppOnly: true, size: Shape{Layers: 2, Embed: compact.Embed, Heads: compact.Heads, KVHeads: compact.KVHeads, HeadDim: compact.HeadDim}},
	"eagle3":           {layout: eagle3, llamaCppOnly: true, size: Shape{Layers: 1, Embed: compact.Embed, Heads: compact.Heads, KVHeads: compact.KVHeads, HeadDim: compact.HeadDim}},
	"gemma3":           {layout: gemma3, size: gemma3Size, window: defaultWindow},
	"gemma3-vision":    {layout: gemma3Vision, name: "gemma3", size: gemma3VisionSize, window: defaultWindow},
	"gemma3n":          {layout: gemma3n, llamaCpp: gemma3nForLlamaCpp, size: gemma3nSize, window: defaultWindow, layersMin: gemma3nLayersMin},
	"gemma4":           {since: "v0.20.0", layout: gemma4, llamaCpp: gemma4ForLlamaCpp, size: gemma3nSize, window: defaultWindow, layersMin: gemma3nLayersMin},
	"gemma4-assistant": {layout: gemma4Assistant, llamaCppOnly: true, size: gemma4AssistantSize, window: defaultWindow},
	"gemma4-vision":    {since: "v0.20.0", layout: gemma4Vision, name: "gemma4", size: gemma3nSize, window: defaultWindow, layersMin: gemma3nLayersMin},
	"glm4moelite":      {layout: glm4moelite, llamaCpp: latentForLlamaCpp, llamaCppName: "deepseek2", size: latentSize, ffnPerEmbed: 1, layersMin: 2},
	"gptoss":           {layout: gptoss, llamaCpp: gptossForLlamaCpp, llamaCppName: "gpt-oss", size: compact, ffnPerEmbed: 1, window: defaultWindow},
	"lfm2":             {layout: lfm2, llamaCpp: lfm2ForLlamaCpp, size: compact, layersMin: 2},
	"llama":            {layout: llama, size: compact},
	"llama4":           {layout: llama4, size: compact, ffnPerEmbed: 1, window: defaultWindow, layersMin: llama4Step, headsFill: true},
	"mistral3":         {layout: mistral3, size: compact},
	"mllama":           {layout: mllama, size: mllamaSize, layersMin: mllamaLayersMin, headsFill: true},
	"nemotron_h":       {since: "v0.17.1", layout: nemotronH, llamaCpp: nemotronHForLlamaCpp, size: nemotronHSize, layersMin: nemotronHPeriod},
	"olmo3":            {layout: olmo3, llamaCppName: "olmo2", size: compact, window: defaultWindow, headsFill: true},
	"phi3":             {layout: phi3, llamaCppOnly: true, size: compact, headsFill: true},
	"qwen2":            {layout: qwen2, size: compact},
	"qwen3":            {layout: qwen3, size: usual},
	"qwen3moe":         {layout: qwen3moe, size: compact, ffnPerEmbed: 1},
	"qwen35":           {since: "v0.17.1", layout: qwen35, llamaCpp: qwen35ForLlamaCpp, size: compact, layersMin: 2},
	"qwen3vl":          {layout: qwen3vl, llamaCppOnly: true, size: compact},
	"qwen3next":        {layout: qwen3next, llamaCpp: qwen3nextForLlamaCpp, size: compact, layersMin: 2},
}

const (
	ropeBase   = 1e6
	rmsEpsilon = 1e-6
)

// Scales of the random weights. The residual stream starts at variance 1 (the
// token's embedding) and ends at 1 + attentionVariance + ffnVariance.
const (
	attentionSharpness = 2.5 // standard deviation of q·k/√d before the softmax
	attentionVariance  = 2.0 // variance of the sum of all attention layers
	ffnVariance        = 1.0 // variance of the sum of all feed-forward layers
	attentionMixRMS    = 0.6 // RMS of a softmax-weighted mean of values of RMS 1
	gatedRMS           = 0.6 // RMS of silu(g)·u for g and u of variance 1
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

// headGain is the gain of the norms of each head's query and key, in models whose engine
// does not divide scores by the square root of a head's width.
func headGain(width int) float32 {
	return float32(math.Sqrt(attentionSharpness) / math.Pow(float64(width), 0.25))
}

// base is everything outside the layers.
func base(s Shape) layout {
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
			{name: embeddingTensor, in: s.Embed, out: s.Vocab, scale: 1, firstColumn: constantColumn(biasValue)},
			{name: "output_norm.weight", in: s.Embed, norm: 1},
			{name: outputTensor, in: s.Embed, out: s.Vocab, scale: logitRMS * perInput(s), firstColumn: outputBias(s, residualRMS(s)/biasValue)},
		},
	}
	if s.Pooling > 0 {
		l.metadata["pooling_type"] = uint32(s.Pooling)
	}
	return l
}

// sharpAttention is attention whose projections make it sharp.
func sharpAttention(s Shape, i int) []matrix {
	return attentionBlock(s, i, math.Sqrt(attentionSharpness))
}

// normedAttention is attention with norms of each head's query and key, of which each has half of
// the sharpness.
func normedAttention(s Shape, i int) []matrix {
	return append(plainAttention(s, i), queryNorms(i, s.HeadDim, float32(math.Sqrt(attentionSharpness)))...)
}

// plainAttention is attention that something else makes sharp.
func plainAttention(s Shape, i int) []matrix { return attentionBlock(s, i, 1) }

// queryNorms are the norms of each head's query and key in layer i.
func queryNorms(i, width int, gain float32) []matrix {
	return []matrix{
		{name: block(i, "attn_q_norm"), in: width, norm: gain},
		{name: block(i, "attn_k_norm"), in: width, norm: gain},
	}
}

// attentionBlock is grouped-query attention in layer i. scoreGain multiplies the projections of queries
// and keys.
func attentionBlock(s Shape, i int, scoreGain float64) []matrix {
	queryWidth, kvWidth := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	gain := layerGain(s, attentionVariance) / attentionMixRMS / math.Sqrt(float64(queryWidth))
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "attn_q"), in: s.Embed, out: queryWidth, scale: scoreGain * perInput(s)},
		{name: block(i, "attn_k"), in: s.Embed, out: kvWidth, scale: scoreGain * perInput(s), kv: kvWidth},
		{name: block(i, "attn_v"), in: s.Embed, out: kvWidth, scale: perInput(s), kv: kvWidth},
		{name: block(i, "attn_output"), in: queryWidth, out: s.Embed, scale: gain, zero: 1},
	}
}

// feedForward is the gated feed-forward part of layer i.
func feedForward(s Shape, i int) []matrix {
	return append(gatedMatrices(s, i, ""), matrix{name: block(i, "ffn_norm"), in: s.Embed, norm: 1, zero: 1})
}

// gatedMatrices are those of a gated feed-forward part, with an ending of their names.
func gatedMatrices(s Shape, i int, ending string) []matrix {
	gain := layerGain(s, ffnVariance) / gatedRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "ffn_gate"+ending), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_up"+ending), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down"+ending), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}

const (
	embeddingTensor = "token_embd.weight"
	outputTensor    = "output.weight"
)

// change applies f to the matrix of the given name.
func change(matrices []matrix, name string, f func(*matrix)) {
	for i := range matrices {
		if matrices[i].name == name {
			f(&matrices[i])
		}
	}
}

// without returns matrices without some of layer i.
func without(matrices []matrix, i int, tensors ...string) []matrix {
	return slices.DeleteFunc(matrices, func(m matrix) bool {
		return slices.ContainsFunc(tensors, func(tensor string) bool { return m.name == block(i, tensor) })
	})
}

// block names a tensor of layer i.
func block(i int, tensor string) string { return fmt.Sprintf("blk.%d.%s.weight", i, tensor) }

// perInput keeps the variance of a matrix's input from the residual stream.
func perInput(s Shape) float64 { return 1 / math.Sqrt(float64(s.Embed)) }

// layerGain is the RMS of one layer's part of a variance that all layers add up to.
func layerGain(s Shape, variance float64) float64 {
	return math.Sqrt(variance / float64(s.Layers))
}

// constantColumn is a first column that holds v for every token.
func constantColumn(v float32) func(int) float32 {
	return func(int) float32 { return v }
}

// outputBias is a first column that, multiplied with the constant dimension, adds nothing to
// printable tokens and gives every other token suppressedLogit. rmsPerConstant is the final
// RMS of the residual stream over the constant.
func outputBias(s Shape, rmsPerConstant float64) func(int) float32 {
	weight := float32(suppressedLogit * rmsPerConstant)
	vocabulary := newVocabulary(s.Vocab)
	return func(token int) float32 {
		if vocabulary.printable[token] {
			return 0
		}
		return weight
	}
}
