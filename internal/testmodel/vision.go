package testmodel

import (
	"cmp"
	"fmt"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// tower is a small vision tower: an encoder that turns an image into patches, and each patch
// into a vector.
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
	out               string // the projection after attention, attn_output if empty
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
			matrix{name: name(cmp.Or(e.out, "attn_output")), in: v.embed, out: v.embed, scale: perInput / attentionMixRMS},
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
