package testmodel

import (
	"maps"
	"math"
)

// mistralTower is of Pixtral's kind: images of up to 56×56 pixels become up to 8×8 patches,
// and each 2×2 patches become one position of the prompt, with a token after each row.
var mistralTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 56, patch: 7}

const mistralMerge = 2 // mistralMerge² patches become one position

// mistral3 attends to all positions and takes images. The special tokens of images are 10,
// 12 and 13, which are control characters here.
func mistral3(s Shape) layout {
	l := transformer(s, math.Sqrt(attentionSharpness))
	v := mistralTower
	maps.Copy(l.metadata, v.metadata())
	l.metadata["vision.attention.key_length"] = uint32(v.embed / v.heads)
	l.metadata["vision.longest_edge"] = uint32(v.image)
	l.metadata["vision.rope.freq_base"] = float32(gemmaLocalRopeBase)
	l.metadata["spatial_merge_size"] = uint32(mistralMerge)

	merged := mistralMerge * mistralMerge * v.embed
	perInput := func(in int) float64 { return 1 / math.Sqrt(float64(in)) }
	l.matrices = append(l.matrices,
		v.patchEmbedding("v.patch_conv.weight"),
		matrix{name: "v.encoder_norm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.norm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.patch_merger.merging_layer.weight", in: merged, out: v.embed, scale: perInput(merged)},
		matrix{name: "mm.linear_1.weight", in: v.embed, out: s.Embed, scale: perInput(v.embed)},
		matrix{name: "mm.linear_2.weight", in: s.Embed, out: s.Embed, scale: perInput(s.Embed) / geluRMS},
	)
	l.matrices = append(l.matrices, v.blocks(encoder{
		prefix: "v.blk.", attnNorm: "attn_norm", ffnNorm: "ffn_norm", gate: "ffn_gate", up: "ffn_up", down: "ffn_down",
	}, v.layers)...)
	return l
}
