package testmodel

import (
	"fmt"
	"maps"
	"math"
	"strings"
)

// mllamaSize is small because the engine's source fixes the token of an image, 128,256: the
// embedding has rows up to that token.
var mllamaSize = Shape{Layers: 5, Embed: 64, Heads: 2, KVHeads: 1, HeadDim: 32}

const (
	mllamaTokens    = 128257
	mllamaLayersMin = 3
)

// mllamaTower has patches of one pixel: the engine's source also fixes 40×40 patches per
// image, and one vector more. There is only one tile.
var mllamaTower = tower{layers: 2, embed: 32, heads: 2, ffn: 64, image: 40, patch: 1}

const (
	mllamaGlobalLayers = 1
	mllamaTiles        = 1
	mllamaRatios       = 2 // ways to arrange the tiles, counted from 1
)

// readsImage reports whether a layer attends to the image instead of the text. The engine
// skips such layers without an image; the last layer cannot be one of them.
func readsImage(s Shape, layer int) bool { return layer%3 == 1 && layer != s.Layers-1 }

// mllama has one token for an image of any size. Layers of cross-attention keep keys and
// values of the latest image in a separate cache, without positions. The model runs one
// request at a time.
func mllama(s Shape) layout {
	l := base(s)
	l.metadata["vocab_size"] = uint32(s.Vocab)
	l.change(embeddingTensor, func(m *matrix) { m.out = max(s.Vocab, mllamaTokens) })
	var cross []int32
	for i := range s.Layers {
		if readsImage(s, i) {
			cross = append(cross, int32(i))
			l.matrices = append(l.matrices, crossAttention(s, i)...)
		} else {
			l.matrices = append(l.matrices, attentionBlock(s, i, math.Sqrt(attentionSharpness))...)
		}
		l.matrices = append(l.matrices, feedForward(s, i)...)
	}
	l.metadata["attention.cross_attention_layers"] = cross
	maps.Copy(l.metadata, mllamaTower.metadata())
	l.metadata["vision.global.block_count"] = uint32(mllamaGlobalLayers)
	l.metadata["vision.intermediate_layers_indices"] = []int32{0, 1} // the input of each of the tower's layers is an output, too
	l.metadata["vision.max_num_tiles"] = uint32(mllamaTiles)
	l.matrices = append(l.matrices, mllamaVisionMatrices(s)...)
	return l
}

// crossAttention is the attention of layer i to the image, and the gates of its
// two parts, of which the engine takes the hyperbolic tangent.
func crossAttention(s Shape, i int) []matrix {
	const gate = 1.5
	var matrices []matrix
	names := map[string]string{
		"attn_norm": "attn_norm", "attn_q": "cross_attn_q_proj", "attn_k": "cross_attn_k_proj", "attn_v": "cross_attn_v_proj",
		"attn_output": "cross_attn_o_proj", "attn_q_norm": "cross_attn_q_norm", "attn_k_norm": "cross_attn_k_norm",
	}
	for _, m := range append(attentionBlock(s, i, 1), headNorms(s, i)...) {
		m.name = block(i, names[strings.Split(m.name, ".")[2]])
		matrices = append(matrices, m)
	}
	return append(matrices,
		matrix{name: fmt.Sprintf("blk.%d.cross_attn_attn_gate", i), in: 1, norm: gate},
		matrix{name: fmt.Sprintf("blk.%d.cross_attn_mlp_gate", i), in: 1, norm: gate},
	)
}

func mllamaVisionMatrices(s Shape) []matrix {
	v := mllamaTower
	positions := (v.image/v.patch)*(v.image/v.patch) + 1
	outputs := v.embed * (1 + v.layers)
	matrices := []matrix{
		v.patchEmbedding("v.patch_embd.weight"),
		{name: "v.class_embd", in: v.embed, f32: true, scale: 1},
		{name: "v.position_embd.weight", in: v.embed, out: positions, scale: 1},
		{name: "v.tile_position_embd.weight", in: v.embed * positions * mllamaTiles, out: mllamaRatios, scale: 1},
		{name: "v.pre_tile_position_embd.weight", in: v.embed * mllamaTiles, out: mllamaRatios, scale: 1},
		{name: "v.post_tile_position_embd.weight", in: v.embed * mllamaTiles, out: mllamaRatios, scale: 1},
		{name: "v.pre_ln.weight", in: v.embed, norm: 1},
		{name: "v.post_ln.weight", in: v.embed, norm: 1},
		{name: "mm.0.weight", in: outputs, out: s.Embed, scale: 1 / math.Sqrt(2*float64(outputs))},
	}
	e := encoder{prefix: "v.blk.", attnNorm: "attn_norm", ffnNorm: "ffn_norm", up: "ffn_up", down: "ffn_down"}
	matrices = append(matrices, v.blocks(e, v.layers)...)
	e.prefix = "v.global.blk."
	return append(matrices, v.blocks(e, mllamaGlobalLayers)...)
}

func mllamaPerToken(s Shape) int {
	n := 0
	for i := range s.Layers {
		if !readsImage(s, i) {
			n += 2 * s.KVHeads * s.HeadDim
		}
	}
	return n
}
