package testmodel

import (
	"maps"
	"math"
)

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
