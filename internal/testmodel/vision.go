package testmodel

import (
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
)

// tower is a small vision tower: an encoder that turns an image into patches, and each patch into a vector.
type tower struct {
	layers, embed, heads, ffn int
	image, patch              int // width and height of the image and of a patch, in pixels
}

const imageChannels = 3

const (
	visionEpsilon = 1e-6
	geluRMS       = 0.6 // RMS of gelu(x) for x of variance 1
)

// encoder holds the names and the parts of a tower's layers.
type encoder struct {
	prefix            string // before a layer's number
	attnNorm, ffnNorm string
	out               string // the projection after attention
	gate, up, down    string // gate is empty if the feed-forward part is not gated
	// headNorms: each head's query and key have norms, and the engine does not scale their
	// product. postNorms: norms follow attention and the feed-forward part.
	headNorms, postNorms bool
}

func (v tower) metadata() ggml.KV {
	return ggml.KV{
		"vision.block_count":                  uint32(v.layers),
		"vision.embedding_length":             uint32(v.embed),
		"vision.feed_forward_length":          uint32(v.ffn),
		"vision.attention.head_count":         uint32(v.heads),
		"vision.attention.layer_norm_epsilon": float32(visionEpsilon),
		"vision.image_size":                   uint32(v.image),
		"vision.patch_size":                   uint32(v.patch),
		"vision.num_channels":                 uint32(imageChannels),
	}
}

// patches is the number of patches of an image.
func (v tower) patches() int { return (v.image / v.patch) * (v.image / v.patch) }

// patchEmbedding reads patches whose pixels have a variance of about 1.
func (v tower) patchEmbedding(name string) matrix {
	in := v.patch * v.patch * imageChannels
	return matrix{
		name: name, in: in, out: v.embed, dims: []int{v.patch, v.patch, imageChannels, v.embed},
		scale: 1 / math.Sqrt(float64(in)),
	}
}

// blocks returns the layers of an encoder. Each layer adds as much variance as its input
// has, so that patches remain distinct.
func (v tower) blocks(e encoder, layers int) []matrix {
	perInput := 1 / math.Sqrt(float64(v.embed))
	var matrices []matrix
	for i := range layers {
		name := func(tensor string) string { return fmt.Sprintf("%s%d.%s.weight", e.prefix, i, tensor) }
		matrices = append(matrices,
			matrix{name: name(e.attnNorm), in: v.embed, norm: 1},
			matrix{name: name("attn_q"), in: v.embed, out: v.embed, scale: math.Sqrt(attentionSharpness) * perInput},
			matrix{name: name("attn_k"), in: v.embed, out: v.embed, scale: math.Sqrt(attentionSharpness) * perInput},
			matrix{name: name("attn_v"), in: v.embed, out: v.embed, scale: perInput},
			matrix{name: name(e.out), in: v.embed, out: v.embed, scale: perInput / attentionMixRMS},
			matrix{name: name(e.ffnNorm), in: v.embed, norm: 1},
			matrix{name: name(e.up), in: v.embed, out: v.ffn, scale: perInput},
			matrix{name: name(e.down), in: v.ffn, out: v.embed, scale: 1 / geluRMS / math.Sqrt(float64(v.ffn))},
		)
		if e.gate != "" {
			matrices = append(matrices, matrix{name: name(e.gate), in: v.embed, out: v.ffn, scale: perInput})
		}
		if e.headNorms {
			width := v.embed / v.heads
			matrices = append(matrices,
				matrix{name: name("attn_q_norm"), in: width, norm: headGain(width)},
				matrix{name: name("attn_k_norm"), in: width, norm: headGain(width)})
		}
		if e.postNorms {
			matrices = append(matrices,
				matrix{name: name("attn_post_norm"), in: v.embed, norm: 1}, matrix{name: name("ffn_post_norm"), in: v.embed, norm: 1})
		}
	}
	return matrices
}

// addTower adds a tower: its sizes, its first matrix of the given name, and its layers.
func (l *layout) addTower(v tower, patchEmbedding string, e encoder) {
	maps.Copy(l.metadata, v.metadata())
	l.add(v.patchEmbedding(patchEmbedding))
	l.add(v.blocks(e, v.layers)...)
}

// mistralTower is of Pixtral's kind: images of up to 56×56 pixels become up to 8×8 patches,
// and each 2×2 patches become one position of the prompt, with a token after each row.
var mistralTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 56, patch: 7}

const mistralMerge = 2 // mistralMerge² patches become one position

// mistral3 attends to all positions and takes images. The special tokens of images are 10,
// 12 and 13, which are control characters here.
func mistral3(s Shape) layout {
	l := stack(s, sharpAttention, feedForward)
	v := mistralTower
	l.addTower(v, "v.patch_conv.weight", encoder{
		prefix: "v.blk.", attnNorm: "attn_norm", ffnNorm: "ffn_norm", out: "attn_output",
		gate: "ffn_gate", up: "ffn_up", down: "ffn_down",
	})
	l.metadata["vision.attention.key_length"] = uint32(v.embed / v.heads)
	l.metadata["vision.longest_edge"] = uint32(v.image)
	l.metadata["vision.rope.freq_base"] = float32(gemmaLocalRopeBase)
	l.metadata["spatial_merge_size"] = uint32(mistralMerge)

	merged := mistralMerge * mistralMerge * v.embed
	perInput := func(in int) float64 { return 1 / math.Sqrt(float64(in)) }
	l.add(
		matrix{name: "v.encoder_norm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.norm.weight", in: v.embed, norm: 1},
		matrix{name: "mm.patch_merger.merging_layer.weight", in: merged, out: v.embed, scale: perInput(merged)},
		matrix{name: "mm.linear_1.weight", in: v.embed, out: s.Embed, scale: perInput(v.embed)},
		matrix{name: "mm.linear_2.weight", in: s.Embed, out: s.Embed, scale: perInput(s.Embed) / geluRMS},
	)
	return l
}

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
	mllamaRatios       = 2 // ways to arrange the tiles, counted from 1
)

// readsImage reports whether a layer attends to the image instead of the text. The engine
// skips such layers without an image; the last layer cannot be one of them.
func readsImage(s Shape, layer int) bool { return layer%3 == 1 && layer != s.Layers-1 }

// mllama has one token for an image of any size. Layers of cross-attention keep keys and values of the latest
// image in a separate cache, without positions.
func mllama(s Shape) layout {
	var cross []int32
	l := stack(s, func(s Shape, i int) []matrix {
		if !readsImage(s, i) {
			return sharpAttention(s, i)
		}
		cross = append(cross, int32(i))
		return crossAttention(s, i)
	}, feedForward)
	l.metadata["vocab_size"] = uint32(s.Vocab)
	l.metadata["attention.cross_attention_layers"] = cross
	change(l.matrices, embeddingTensor, func(m *matrix) { m.out = max(s.Vocab, mllamaTokens) })
	l.metadata["vision.global.block_count"] = uint32(mllamaGlobalLayers)
	l.metadata["vision.intermediate_layers_indices"] = []int32{0, 1} // the input of each of the tower's layers is an output, too
	l.metadata["vision.max_num_tiles"] = uint32(1)

	v := mllamaTower
	positions := v.patches() + 1
	outputs := v.embed * (1 + v.layers)
	e := encoder{prefix: "v.blk.", attnNorm: "attn_norm", ffnNorm: "ffn_norm", out: "attn_output", up: "ffn_up", down: "ffn_down"}
	l.addTower(v, "v.patch_embd.weight", e)
	e.prefix = "v.global.blk."
	l.add(v.blocks(e, mllamaGlobalLayers)...)
	l.add(
		matrix{name: "v.class_embd", in: v.embed, f32: true, scale: 1},
		matrix{name: "v.position_embd.weight", in: v.embed, out: positions, scale: 1},
		matrix{name: "v.tile_position_embd.weight", in: v.embed * positions, out: mllamaRatios, scale: 1},
		matrix{name: "v.pre_tile_position_embd.weight", in: v.embed, out: mllamaRatios, scale: 1},
		matrix{name: "v.post_tile_position_embd.weight", in: v.embed, out: mllamaRatios, scale: 1},
		matrix{name: "v.pre_ln.weight", in: v.embed, norm: 1},
		matrix{name: "v.post_ln.weight", in: v.embed, norm: 1},
		matrix{name: "mm.0.weight", in: outputs, out: s.Embed, scale: 1 / math.Sqrt(2*float64(outputs))},
	)
	return l
}

// crossAttention is the attention of layer i to the image, and the gates of its
// two parts, of which the engine takes the hyperbolic tangent.
func crossAttention(s Shape, i int) []matrix {
	const gate = 1.5
	names := map[string]string{
		"attn_norm": "attn_norm", "attn_q": "cross_attn_q_proj", "attn_k": "cross_attn_k_proj", "attn_v": "cross_attn_v_proj",
		"attn_output": "cross_attn_o_proj", "attn_q_norm": "cross_attn_q_norm", "attn_k_norm": "cross_attn_k_norm",
	}
	matrices := normedAttention(s, i)
	for j := range matrices {
		m := &matrices[j]
		m.name, m.kv = block(i, names[strings.Split(m.name, ".")[2]]), 0 // they are those of an image
	}
	return append(matrices,
		matrix{name: fmt.Sprintf("blk.%d.cross_attn_attn_gate", i), in: 1, norm: gate},
		matrix{name: fmt.Sprintf("blk.%d.cross_attn_mlp_gate", i), in: 1, norm: gate},
	)
}

// llavaTower cuts an image into 2×2 patches, each of which becomes one position of the prompt.
var llavaTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 32, patch: 16}

// qwen2vlTower is of Qwen2-VL's kind: an image has as many patches of 8×8 pixels as it is large, and
// qwen2vlMerge of them become one token, which has a column and a row.
var qwen2vlTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 32, patch: 8}

const qwen2vlMerge = 2 * 2

// gemma3Tower is of Gemma 3's kind: the mean of each 4×4 patches becomes one token. Tokens of an image also
// attend to those behind them.
var gemma3Tower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 64, patch: 4}

// WriteProjector writes a small vision tower as llama.cpp wants it: in a file of its own beside
// a model of the Shape. It is of Qwen2-VL's kind for models whose positions have sections, of Gemma 3's
// for that, which makes 16 positions of any image, else of LLaVA's, which makes four.
func WriteProjector(path string, s Shape) error {
	s = s.WithDefaults()
	v, kind, in := llavaTower, "mlp", llavaTower.embed
	_, sections := architectures[s.Arch].layout(s).metadata["rope.dimension_sections"]
	gemma := s.Arch == "gemma3"
	switch {
	case sections:
		v, kind, in = qwen2vlTower, "qwen2vl_merger", qwen2vlMerge*qwen2vlTower.embed
	case gemma:
		v, kind = gemma3Tower, "gemma3"
	}
	l := layout{metadata: ggml.KV{
		"general.architecture":  "clip",
		"has_vision_encoder":    true,
		"projector_type":        kind,
		"use_gelu":              true,
		"vision.projection_dim": uint32(s.Embed),
		"vision.image_mean":     []float32{0.5, 0.5, 0.5},
		"vision.image_std":      []float32{0.5, 0.5, 0.5},
	}}
	l.addTower(v, "v.patch_embd.weight", encoder{prefix: "v.blk.", attnNorm: "ln1", ffnNorm: "ln2", out: "attn_out", up: "ffn_up", down: "ffn_down"})
	for _, m := range l.matrices {
		if width := max(m.out, m.in); m.norm != 0 || sections && strings.Contains(m.name, ".attn_") {
			l.add(matrix{name: strings.TrimSuffix(m.name, "weight") + "bias", in: width, f32: true})
		}
	}
	if gemma {
		l.add(
			matrix{name: "mm.soft_emb_norm.weight", in: v.embed, norm: 1},
			matrix{name: "mm.input_projection.weight", in: s.Embed, out: v.embed, scale: 1 / math.Sqrt(float64(v.embed))})
	} else {
		l.add(
			matrix{name: "mm.0.weight", in: in, out: s.Embed, scale: 1 / math.Sqrt(float64(in))},
			matrix{name: "mm.0.bias", in: s.Embed, f32: true},
			matrix{name: "mm.2.weight", in: s.Embed, out: s.Embed, scale: perInput(s) / geluRMS},
			matrix{name: "mm.2.bias", in: s.Embed, f32: true})
	}
	if sections {
		l.add(v.patchEmbedding("v.patch_embd.weight.1")) // of the second of two frames
	} else {
		l.add(matrix{name: "v.position_embd.weight", in: v.embed, out: v.patches(), f32: true, scale: 1})
	}
	return l.write(path, fmt.Sprintf("kvtier test projector, random weights, seed %d", s.Seed), s.Seed)
}
