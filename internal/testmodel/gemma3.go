package testmodel

import (
	"maps"
	"math"
)

const gemmaLocalRopeBase = 1e4 // rotary base of layers with a sliding window

// gemma3Size has one layer of seven without a window.
var gemma3Size = Shape{Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

// gemma3 is text only and always runs on the native engine. Layers 5, 11, 17 and so on
// attend to all positions, the others to a sliding window, which Ollama keeps in a separate
// cache. Ollama takes a model of 34, 48 or 62 layers for one of Google's models and corrects
// its rotary and attention scales, also for a model of this package.
func gemma3(s Shape) layout {
	l := transformer(s, 1)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["rope.local.freq_base"] = float32(gemmaLocalRopeBase)
	scaleEmbedding(s, l)
	for i := range s.Layers {
		l.matrices = append(l.matrices, headNorms(s, i)...)
		l.matrices = append(l.matrices, postNorms(s, i)...)
	}
	return l
}

// scaleEmbedding compensates for models that multiply embeddings with √embed.
func scaleEmbedding(s Shape, l layout) {
	l.change(embeddingTensor, func(m *matrix) {
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

// gemmaTower cuts an image into 8×8 patches, of which each 2×2 become one position of the
// prompt.
var gemmaTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 56, patch: 7}

// gemma3Vision is gemma3 with images. The positions of an image attend to each other in both
// directions and must be in one batch.
func gemma3Vision(s Shape) layout {
	l := gemma3(s)
	v := gemmaTower
	maps.Copy(l.metadata, v.metadata())
	l.metadata["mm_tokens_per_image"] = uint32(gemmaTokensPerImage)
	l.change(embeddingTensor, func(m *matrix) { m.out = max(s.Vocab, gemmaTokens) })

	patches := (v.image / v.patch) * (v.image / v.patch)
	l.matrices = append(l.matrices,
		v.patchEmbedding("v.patch_embedding.weight"),
		matrix{name: "v.position_embedding.weight", in: v.embed, out: patches, scale: 1},
		matrix{name: "v.post_layernorm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.mm_soft_emb_norm.weight", in: v.embed, norm: 1},
		// stored transposed, unlike every other projection
		matrix{name: "mm.mm_input_projection.weight", in: s.Embed, out: v.embed, scale: 1 / math.Sqrt(float64(v.embed))},
	)
	l.matrices = append(l.matrices, v.blocks(encoder{
		prefix: "v.blk.", attnNorm: "layer_norm1", ffnNorm: "layer_norm2", up: "mlp.fc1", down: "mlp.fc2",
	}, v.layers)...)
	return l
}
