package testmodel

import (
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

var gemma3nSize = Shape{Layers: 6, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

const (
	gemma3nShared    = 2 // last layers, which read the caches of two layers before them
	gemma3nLayersMin = 2 + gemma3nShared

	altupInputs   = 2 // residual streams; the first goes through the layers
	altupMix      = 0.02
	perLayerWidth = 32 // width of a token's embedding for a layer
	laurelRank    = 16
)

// Gains of the norms through which each part of a layer adds to the residual stream.
const (
	gemma3nAttention = 1.0
	gemma3nFFN       = 0.7
	gemma3nLaurel    = 0.3
	gemma3nPerLayer  = 0.5
)

// gemma3nIsLocal reports whether a layer has a sliding window: every other one, and not the
// last.
func gemma3nIsLocal(s Shape, layer int) bool { return (s.Layers-1-layer)%2 != 0 }

// gemma3n has K/V in all layers except the last two. Of these two, the layer with a sliding
// window reads the K/V of the last earlier layer with a window; the other reads the K/V of
// the last earlier layer without a window. The tokenizer is of SentencePiece's kind.
func gemma3n(s Shape) layout {
	l := base(s)
	var windows []bool
	for i := range s.Layers {
		windows = append(windows, gemma3nIsLocal(s, i))
		l.matrices = append(l.matrices, gemma3nAttentionBlock(s, i)...)
		l.matrices = append(l.matrices, feedForward(s, i)...)
		l.matrices = append(l.matrices, gemma3nExtras(s, i)...)
	}
	scaleEmbedding(s, l)
	l.change(outputTensor, func(m *matrix) { m.firstColumn = outputBias(s, gemma3nRMSPerConstant(s)) })
	l.matrices = append(l.matrices, gemma3nInputs(s)...)
	maps.Copy(l.metadata, newVocabulary(s.Vocab).sentencePiece())
	maps.Copy(l.metadata, ggml.KV{
		"embedding_length_per_layer_input": uint32(perLayerWidth),
		"attention.shared_kv_layers":       uint32(gemma3nShared),
		"attention.sliding_window":         uint32(s.Window),
		"attention.sliding_window_pattern": windows,
		"altup.active_idx":                 uint32(0),
		"altup.num_inputs":                 uint32(altupInputs),
		"activation_sparsity_scale":        make([]float32, len(windows)),
		"rope.freq_base_local":             float32(gemmaLocalRopeBase),
	})
	return l
}

// gemma3nAttentionBlock is the attention of layer i. The engine does not divide
// scores by the square root of a head's width.
func gemma3nAttentionBlock(s Shape, i int) []matrix {
	gain := headGain(s.HeadDim)
	var matrices []matrix
	for _, m := range append(attentionBlock(s, i, 1),
		matrix{name: block(i, "attn_q_norm"), in: s.HeadDim, norm: gain},
		matrix{name: block(i, "attn_k_norm"), in: s.HeadDim, norm: gain},
	) {
		ofKV := m.name == block(i, "attn_k") || m.name == block(i, "attn_v") || m.name == block(i, "attn_k_norm")
		if !ofKV || i < s.Layers-gemma3nShared {
			matrices = append(matrices, m)
		}
	}
	return append(matrices,
		matrix{name: block(i, "post_attention_norm"), in: s.Embed, norm: gemma3nAttention},
		matrix{name: block(i, "post_ffw_norm"), in: s.Embed, norm: gemma3nFFN},
	)
}

// gemma3nExtras are the parts of layer i beside attention and feed-forward part: the mix of
// the residual streams, a path parallel to attention, and the token's embedding for this
// layer.
func gemma3nExtras(s Shape, i int) []matrix {
	return append(perLayerInput(s, i, gemma3nPerLayer), []matrix{
		{name: block(i, "altup_router_norm"), in: s.Embed, norm: 1, zero: 1},
		// the engine divides its input by embed
		{name: block(i, "altup_router"), in: s.Embed, out: altupInputs, scale: math.Sqrt(float64(s.Embed))},
		{name: block(i, "altup_predict_coef"), in: altupInputs, out: altupInputs * altupInputs, scale: altupMix},
		{name: block(i, "altup_correct_coef"), in: altupInputs, out: altupInputs, scale: altupMix},
		{name: block(i, "laurel_l"), in: s.Embed, out: laurelRank, scale: perInput(s)},
		{name: block(i, "laurel_r"), in: laurelRank, out: s.Embed, scale: 1 / math.Sqrt(laurelRank), zero: 1},
		{name: block(i, "laurel_post_norm"), in: s.Embed, norm: gemma3nLaurel},
	}...)
}

// perLayerInput adds the token's embedding for layer i, with the gain of a norm.
func perLayerInput(s Shape, i int, gain float32) []matrix {
	return []matrix{
		{name: block(i, "inp_gate"), in: s.Embed, out: perLayerWidth, scale: perInput(s), firstColumn: constantColumn(0)},
		{name: block(i, "proj"), in: perLayerWidth, out: s.Embed, scale: 1 / math.Sqrt(perLayerWidth), zero: 1},
		{name: block(i, "post_norm"), in: s.Embed, norm: gain},
	}
}

// perLayerEmbeddings are the embeddings of each token for each layer.
func perLayerEmbeddings(s Shape) []matrix {
	return []matrix{
		{name: "per_layer_token_embd.weight", in: s.Layers * perLayerWidth, out: s.Vocab, scale: 1 / math.Sqrt(perLayerWidth)},
		{name: "per_layer_model_proj.weight", in: s.Embed, out: s.Layers * perLayerWidth, scale: perInput(s)},
		{name: "per_layer_proj_norm.weight", in: perLayerWidth, norm: 1},
	}
}

// gemma3nInputs makes the other residual streams, joins them after the last layer, and makes
// each token's embeddings for the layers.
func gemma3nInputs(s Shape) []matrix {
	return append(perLayerEmbeddings(s),
		matrix{name: "altup_proj.weight", in: s.Embed, out: s.Embed, experts: altupInputs - 1, scale: perInput(s), zero: 1},
		matrix{name: "altup_unembd_proj.weight", in: s.Embed, out: s.Embed, experts: altupInputs - 1, scale: perInput(s), zero: 1},
	)
}

// gemma3nRMSPerConstant is the RMS of the mean of all residual streams after the last layer,
// over the constant dimension. Each layer divides its input by √2, the constant dimension
// included, and adds to the other dimensions.
func gemma3nRMSPerConstant(s Shape) float64 {
	rms, constant := 1.0, biasValue
	for range s.Layers {
		around := rms + 1 // the path adds its normalized input
		rms = math.Sqrt((around*around+gemma3nAttention*gemma3nAttention+gemma3nLaurel*gemma3nLaurel)/2 + gemma3nFFN*gemma3nFFN)
		constant /= math.Sqrt2
	}
	return rms / math.Sqrt(altupInputs) / (constant / altupInputs)
}

func gemma3nPerToken(s Shape) int { return 2 * max(0, s.Layers-gemma3nShared) * s.KVHeads * s.HeadDim }
