package testmodel

import (
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// latentSize is the size of models with latent attention: all heads share one key, and the
// value is a part of the key.
var latentSize = Shape{Layers: 4, Embed: 256, Heads: 4, KVHeads: 1, HeadDim: 64}

// In the cache, a key is a rotary part of latentRope elements and a latent vector of
// latentRank elements; a value is the same latent vector. With heads of 512 a key has 576 elements
// and a value 512, as in DeepSeek's models, for which there are kernels on cards.
func latentRope(s Shape) int { return min(max(2, s.HeadDim/2&^1), 64) }
func latentRank(s Shape) int { return s.HeadDim }

// deepseek2 has the form of DeepSeek 3.1.
func deepseek2(s Shape) layout {
	l := latentModel(s)
	maps.Copy(l.metadata, ggml.KV{
		"tokenizer.ggml.pre":                   "deepseek-v3",
		"attention.key_length_mla":             uint32(s.HeadDim),
		"attention.value_length_mla":           uint32(s.HeadDim),
		"rope.scaling.factor":                  float32(1),
		"rope.scaling.original_context_length": uint32(s.Context),
	})
	return l
}

// glm4moelite has the form of GLM 4.7 Flash.
func glm4moelite(s Shape) layout {
	l := latentModel(s)
	l.metadata["tokenizer.ggml.pre"] = "glm4"
	return l
}

// latentModel has a first layer without experts.
func latentModel(s Shape) layout {
	l := mixture(s, latentAttention, func(s Shape, i int) []matrix {
		if i == 0 {
			return feedForward(s, i)
		}
		return expertsAndShared(s, i)
	})
	l.metadata["expert_weights_scale"] = float32(1)
	l.metadata["leading_dense_block_count"] = uint32(1)
	l.metadata["attention.kv_lora_rank"] = uint32(latentRank(s))
	l.metadata["rope.dimension_count"] = uint32(latentRope(s))
	return l
}

// latentAttention multiplies each head's query, except its rotary part, with attn_k_b, and
// the head's weighted sum with attn_v_b, instead of expanding every key and value of the
// cache. The sharpness of attention is in the query.
func latentAttention(s Shape, i int) []matrix {
	rope, rank, width := latentRope(s), latentRank(s), s.Heads*s.HeadDim
	perRank := 1 / math.Sqrt(float64(rank))
	gain := layerGain(s, attentionVariance) / attentionMixRMS / math.Sqrt(float64(width))
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "attn_q"), in: s.Embed, out: width, scale: attentionSharpness * perInput(s)},
		{name: block(i, "attn_kv_a_mqa"), in: s.Embed, out: rank + rope, scale: perInput(s), kv: rope + 2*rank},
		{name: block(i, "attn_kv_a_norm"), in: rank, norm: 1},
		{name: block(i, "attn_k_b"), in: s.HeadDim - rope, out: rank, experts: s.Heads, scale: perRank},
		{name: block(i, "attn_v_b"), in: rank, out: s.HeadDim, experts: s.Heads, scale: perRank},
		{name: block(i, "attn_output"), in: width, out: s.Embed, scale: gain, zero: 1},
	}
}
