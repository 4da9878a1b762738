package testmodel

import (
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
)

// llavaTower cuts an image into 2×2 patches, each of which becomes one position of the prompt.
var llavaTower = tower{layers: 2, embed: 64, heads: 2, ffn: 128, image: 32, patch: 16}

// WriteProjector writes a small vision tower as llama.cpp wants it: in a file of its own beside
// a model of the Shape, of LLaVA's kind. Images of any size become four positions.
func WriteProjector(path string, s Shape) error {
	s = s.WithDefaults()
	v := llavaTower
	metadata := ggml.KV{
		"general.architecture":  "clip",
		"general.name":          fmt.Sprintf("kvtier test projector, random weights, seed %d", s.Seed),
		"general.file_type":     ggml.FileTypeF16,
		"has_vision_encoder":    true,
		"projector_type":        "mlp",
		"use_gelu":              true,
		"vision.projection_dim": uint32(s.Embed),
		"vision.image_mean":     []float32{0.5, 0.5, 0.5},
		"vision.image_std":      []float32{0.5, 0.5, 0.5},
	}
	maps.Copy(metadata, v.metadata())
	patches := (v.image / v.patch) * (v.image / v.patch)
	matrices := []matrix{
		v.patchEmbedding("v.patch_embd.weight"),
		{name: "v.position_embd.weight", in: v.embed, out: patches, f32: true, scale: 1},
		{name: "mm.0.weight", in: v.embed, out: s.Embed, scale: 1 / math.Sqrt(float64(v.embed))},
		{name: "mm.0.bias", in: s.Embed, f32: true},
		{name: "mm.2.weight", in: s.Embed, out: s.Embed, scale: perInput(s) / geluRMS},
		{name: "mm.2.bias", in: s.Embed, f32: true},
	}
	for _, m := range v.blocks(encoder{prefix: "v.blk.", attnNorm: "ln1", ffnNorm: "ln2", out: "attn_out", up: "ffn_up", down: "ffn_down"}, v.layers) {
		matrices = append(matrices, m)
		if m.norm != 0 {
			matrices = append(matrices, matrix{name: strings.TrimSuffix(m.name, "weight") + "bias", in: m.in, f32: true})
		}
	}
	var tensors []*ggml.Tensor
	for _, m := range matrices {
		tensors = append(tensors, m.tensor(s.Seed))
	}
	return WriteFile(path, metadata, tensors)
}
