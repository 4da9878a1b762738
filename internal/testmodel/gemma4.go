package testmodel

import (
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

const (
	gemma4Shared   = gemma3nShared // layers at the end without K/V of their own
	gemma4PerLayer = 0.3           // gain of a layer's part that depends on the token alone

	gemma4GlobalKVHeads = 1
)

// gemma4 has layers of two shapes. Every other layer has a sliding window, heads of half the
// width and all key/value heads. Layers without a window have one key/value head, whose
// value is its key before norm and rotation. The last two layers have no K/V and read the
// K/V of the last earlier layer of their shape. The model of this package is text only.
func gemma4(s Shape) layout {
	l := base(s)
	var windows []bool
	for i := range s.Layers {
		windows = append(windows, gemma3nIsLocal(s, i))
		l.matrices = append(l.matrices, gemma4Attention(s, i)...)
		l.matrices = append(l.matrices, feedForward(s, i)...)
		l.matrices = append(l.matrices, postNorms(s, i)...)
		l.matrices = append(l.matrices, perLayerInput(s, i, gemma4PerLayer)...)
	}
	scaleEmbedding(s, l)
	l.matrices = append(l.matrices, perLayerEmbeddings(s)...)
	vocabulary := newVocabulary(s.Vocab)
	maps.Copy(l.metadata, vocabulary.spacedMerges())
	maps.Copy(l.metadata, ggml.KV{
		// otherwise the engine takes token 106 as an end token
		"tokenizer.ggml.eot_token_id":      uint32(len(vocabulary.tokens) - 1),
		"attention.key_length_swa":         uint32(gemma4LocalDim(s)),
		"attention.value_length_swa":       uint32(gemma4LocalDim(s)),
		"attention.global_head_count_kv":   uint32(gemma4GlobalKVHeads),
		"attention.shared_kv_layers":       uint32(gemma4Shared),
		"attention.sliding_window":         uint32(s.Window),
		"attention.sliding_window_pattern": windows,
		"embedding_length_per_layer_input": uint32(perLayerWidth),
		"rope.freq_base_swa":               float32(gemmaLocalRopeBase),
	})
	return l
}

// gemma4LocalDim is the width of a head in layers with a sliding window.
func gemma4LocalDim(s Shape) int { return max(2, s.HeadDim/2&^1) }

// gemma4Attention is the attention of layer i. The engine does not divide scores
// by the square root of a head's width.
func gemma4Attention(s Shape, i int) []matrix {
	local, owner := gemma3nIsLocal(s, i), i < s.Layers-gemma4Shared
	part := s
	if local {
		part.HeadDim = gemma4LocalDim(s)
	} else {
		part.KVHeads = gemma4GlobalKVHeads
	}
	gain := headGain(part.HeadDim)
	matrices := []matrix{{name: block(i, "attn_q_norm"), in: part.HeadDim, norm: gain}}
	if owner {
		matrices = append(matrices, matrix{name: block(i, "attn_k_norm"), in: part.HeadDim, norm: gain})
	}
	for _, m := range attentionBlock(part, i, 1) {
		switch {
		case m.name == block(i, "attn_k") && !owner:
		case m.name == block(i, "attn_v") && (!owner || !local):
		default:
			matrices = append(matrices, m)
		}
	}
	return matrices
}

func gemma4PerToken(s Shape) int {
	n := 0
	for i := range s.Layers - gemma4Shared {
		if gemma3nIsLocal(s, i) {
			n += 2 * s.KVHeads * gemma4LocalDim(s)
		} else {
			n += 2 * gemma4GlobalKVHeads * s.HeadDim
		}
	}
	return n
}

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
