package testmodel

import (
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

const gemmaLocalRopeBase = 1e4 // rotary base of layers with a sliding window

// gemma3Size has one layer of seven without a window.
var gemma3Size = Shape{Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

// gemma3 attends to all positions in layers 5, 11, 17 and so on. Ollama takes a model of 34, 48 or 62 layers
// for one of Google's models and corrects its rotary and attention scales, also for a model of this package.
func gemma3(s Shape) layout {
	l := stack(s, normedAttention, feedForward, postNorms)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["rope.local.freq_base"] = float32(gemmaLocalRopeBase)
	scaleEmbedding(s, l)
	return l
}

// postNorms are the norms of models that normalize their additions to the residual stream:
// these norms hold the share of each layer.
func postNorms(s Shape, i int) []matrix {
	return normsAfter(s, i, float32(layerGain(s, attentionVariance)), float32(layerGain(s, ffnVariance)))
}

// normsAfter are norms after attention and the feed-forward part of layer i.
func normsAfter(s Shape, i int, attention, ffn float32) []matrix {
	return []matrix{
		{name: block(i, "post_attention_norm"), in: s.Embed, norm: attention},
		{name: block(i, "post_ffw_norm"), in: s.Embed, norm: ffn},
	}
}

// scaleEmbedding compensates for models that multiply embeddings with √embed.
func scaleEmbedding(s Shape, l layout) {
	change(l.matrices, embeddingTensor, func(m *matrix) {
		m.scale, m.firstColumn = perInput(s), constantColumn(float32(biasValue/math.Sqrt(float64(s.Embed))))
	})
}

// gemma3VisionSize is smaller than the size of other models because the engine's source
// fixes the tokens around an image, 255,999 and 256,000: the embedding has rows up to these.
// The 6th layer attends to all positions.
var gemma3VisionSize = Shape{Layers: 7, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 32}

const (
	gemmaTokens         = 256001
	gemmaTokensPerImage = 16
)

// gemmaTower cuts an image into 8×8 patches, of which each 2×2 become one position of the prompt.
var gemmaTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 56, patch: 7}

// gemma3Vision is gemma3 with images.
func gemma3Vision(s Shape) layout {
	l := gemma3(s)
	v := gemmaTower
	l.addTower(v, "v.patch_embedding.weight", encoder{
		prefix: "v.blk.", attnNorm: "layer_norm1", ffnNorm: "layer_norm2", out: "attn_output", up: "mlp.fc1", down: "mlp.fc2",
	})
	l.metadata["mm_tokens_per_image"] = uint32(gemmaTokensPerImage)
	change(l.matrices, embeddingTensor, func(m *matrix) { m.out = max(s.Vocab, gemmaTokens) })

	l.add(
		matrix{name: "v.position_embedding.weight", in: v.embed, out: v.patches(), scale: 1},
		matrix{name: "v.post_layernorm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.mm_soft_emb_norm.weight", in: v.embed, norm: 1},
		// stored transposed, unlike every other projection
		matrix{name: "mm.mm_input_projection.weight", in: s.Embed, out: v.embed, scale: 1 / math.Sqrt(float64(v.embed))},
	)
	return l
}

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

// gemma3nIsLocal reports whether a layer has a sliding window: every other one, and not the last.
func gemma3nIsLocal(s Shape, layer int) bool { return (s.Layers-1-layer)%2 != 0 }

// gemma3nLocal is gemma3nIsLocal of each layer.
func gemma3nLocal(s Shape) []bool {
	return eachLayer(s, func(i int) bool { return gemma3nIsLocal(s, i) })
}

// gemma3n has K/V in all layers except the last two. Of these two, the layer with a sliding
// window reads the K/V of the last earlier layer with a window; the other reads the K/V of
// the last earlier layer without a window. The tokenizer is of SentencePiece's kind.
func gemma3n(s Shape) layout {
	l := stack(s, gemma3nAttentionBlock, feedForward, gemma3nExtras)
	scaleEmbedding(s, l)
	change(l.matrices, outputTensor, func(m *matrix) { m.firstColumn = outputBias(s, gemma3nRMSPerConstant(s)) })
	l.add(perLayerEmbeddings(s)...)
	l.add( // makes the other residual streams, and joins them after the last layer
		matrix{name: "altup_proj.weight", in: s.Embed, out: s.Embed, experts: altupInputs - 1, scale: perInput(s), zero: 1},
		matrix{name: "altup_unembd_proj.weight", in: s.Embed, out: s.Embed, experts: altupInputs - 1, scale: perInput(s), zero: 1},
	)
	maps.Copy(l.metadata, newVocabulary(s.Vocab).sentencePiece())
	maps.Copy(l.metadata, ggml.KV{
		"embedding_length_per_layer_input": uint32(perLayerWidth),
		"attention.shared_kv_layers":       uint32(gemma3nShared),
		"attention.sliding_window":         uint32(s.Window),
		"attention.sliding_window_pattern": gemma3nLocal(s),
		"altup.active_idx":                 uint32(0),
		"altup.num_inputs":                 uint32(altupInputs),
		"activation_sparsity_scale":        make([]float32, s.Layers),
		"rope.freq_base_local":             float32(gemmaLocalRopeBase),
	})
	return l
}

// gemma3nAttentionBlock is the attention of layer i, without K/V in the last two. The engine does not
// divide scores by the square root of a head's width.
func gemma3nAttentionBlock(s Shape, i int) []matrix {
	matrices := append(plainAttention(s, i), queryNorms(i, s.HeadDim, headGain(s.HeadDim))...)
	if i >= s.Layers-gemma3nShared {
		return without(matrices, i, "attn_k", "attn_v", "attn_k_norm")
	}
	return matrices
}

// gemma3nExtras are the parts of layer i beside attention and feed-forward part: the mix of the residual
// streams, a path parallel to attention, and the token's embedding for this layer.
func gemma3nExtras(s Shape, i int) []matrix {
	return append(append(perLayerInput(s, i, gemma3nPerLayer), normsAfter(s, i, gemma3nAttention, gemma3nFFN)...), []matrix{
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

const (
	gemma4PerLayer      = 0.3 // gain of a layer's part that depends on the token alone
	gemma4GlobalKVHeads = 1
)

// gemma4 has layers of two shapes. Every other layer has a sliding window, heads of half the
// width and all key/value heads. Layers without a window have one key/value head, whose
// value is its key before norm and rotation. The last two layers have no K/V and read the
// K/V of the last earlier layer of their shape. The model of this package is text only.
func gemma4(s Shape) layout {
	l := stack(s, gemma4Attention, feedForward, postNorms, func(s Shape, i int) []matrix { return perLayerInput(s, i, gemma4PerLayer) })
	scaleEmbedding(s, l)
	l.add(perLayerEmbeddings(s)...)
	vocabulary := newVocabulary(s.Vocab)
	maps.Copy(l.metadata, vocabulary.spacedMerges())
	maps.Copy(l.metadata, ggml.KV{
		// otherwise the engine takes token 106 as an end token
		"tokenizer.ggml.eot_token_id":      uint32(len(vocabulary.tokens) - 1),
		"attention.global_head_count_kv":   uint32(gemma4GlobalKVHeads),
		"attention.shared_kv_layers":       uint32(gemma3nShared),
		"embedding_length_per_layer_input": uint32(perLayerWidth),
	})
	maps.Copy(l.metadata, gemma4Windows(s))
	return l
}

// gemma4Windows describes the layers that have a window.
func gemma4Windows(s Shape) ggml.KV {
	return ggml.KV{
		"attention.key_length_swa":         uint32(gemma4LocalDim(s)),
		"attention.value_length_swa":       uint32(gemma4LocalDim(s)),
		"attention.sliding_window":         uint32(s.Window),
		"attention.sliding_window_pattern": gemma3nLocal(s),
		"rope.freq_base_swa":               float32(gemmaLocalRopeBase),
	}
}

// gemma4LocalDim is the width of a head in layers with a sliding window.
func gemma4LocalDim(s Shape) int { return max(2, s.HeadDim/2&^1) }

// gemma4Attention is the attention of layer i, as gemma3n's.
func gemma4Attention(s Shape, i int) []matrix {
	if gemma3nIsLocal(s, i) {
		s.HeadDim = gemma4LocalDim(s)
		return gemma3nAttentionBlock(s, i)
	}
	s.KVHeads = gemma4GlobalKVHeads
	matrices := gemma3nAttentionBlock(s, i)
	change(matrices, block(i, "attn_k"), func(m *matrix) { m.kv *= 2 }) // it is the value, too
	return without(matrices, i, "attn_v")
}

// gemma4Tower has patches of few pixels, because the engine scales every image to as many
// patches as fit into 280 positions of the prompt.
var gemma4Tower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, patch: 4}

const (
	gemma4Merge = 2 // gemma4Merge² patches become one position
	// gemma4Side is the largest number of patches on a side of an image: all positions in one row.
	gemma4Side = 280 * gemma4Merge
)

// gemma4Vision is gemma4 with images. The engine finds the tokens before and after an image
// by their names: these tokens are control characters here.
func gemma4Vision(s Shape) layout {
	l := gemma4(s)
	v := gemma4Tower
	l.addTower(v, "v.patch_embd.weight", encoder{
		prefix: "v.blk.", attnNorm: "ln1", ffnNorm: "ln2", out: "attn_out", gate: "ffn_gate", up: "ffn_up", down: "ffn_down",
		headNorms: true, postNorms: true,
	})
	delete(l.metadata, "vision.image_size")
	l.metadata["vision.projector.scale_factor"] = uint32(gemma4Merge)
	tokens := l.metadata["tokenizer.ggml.tokens"].([]string)
	tokens[1], tokens[2] = "<|image>", "<image|>"

	l.add(
		// one embedding for a patch's column and one for its row
		matrix{name: "v.position_embd.weight", in: v.embed, out: gemma4Side, experts: 2, scale: 1},
		matrix{name: "mm.input_projection.weight", in: v.embed, out: s.Embed, scale: 1 / math.Sqrt(float64(v.embed))},
	)
	return l
}
