package testmodel

import (
	"maps"
	"math"
)

// gemma4Tower has patches of few pixels, because the engine scales every image to as many
// patches as fit into 280 positions of the prompt.
var gemma4Tower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, patch: 4}

const (
	gemma4Merge = 2 // gemma4Merge² patches become one position
	// gemma4Side is the largest number of patches on a side of an image: all positions in
	// one row.
	gemma4Side = 280 * gemma4Merge
)

// gemma4Vision is gemma4 with images. The positions of an image attend to each other in both
// directions and must be in one batch. The engine finds the tokens before and after an image
// by their names: these tokens are control characters here.
func gemma4Vision(s Shape) layout {
	l := gemma4(s)
	v := gemma4Tower
	maps.Copy(l.metadata, v.metadata())
	delete(l.metadata, "vision.image_size")
	l.metadata["vision.projector.scale_factor"] = uint32(gemma4Merge)
	tokens := l.metadata["tokenizer.ggml.tokens"].([]string)
	tokens[1], tokens[2] = "<|image>", "<image|>"

	l.matrices = append(l.matrices,
		v.patchEmbedding("v.patch_embd.weight"),
		// one embedding for a patch's column and one for its row
		matrix{name: "v.position_embd.weight", in: v.embed, out: gemma4Side, experts: 2, scale: 1},
		matrix{name: "mm.input_projection.weight", in: v.embed, out: s.Embed, scale: 1 / math.Sqrt(float64(v.embed))},
	)
	l.matrices = append(l.matrices, v.blocks(encoder{
		prefix: "v.blk.", attnNorm: "ln1", ffnNorm: "ln2", out: "attn_out", gate: "ffn_gate", up: "ffn_up", down: "ffn_down",
		headNorms: true, postNorms: true,
	}, v.layers)...)
	return l
}
