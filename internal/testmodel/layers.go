package testmodel

import (
	"fmt"
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// The experts of a mixture: small, and more than one at a time.
const (
	experts     = 4
	expertsUsed = 2

	expertMixRMS = 0.75 // RMS of the weighted mean of the used experts
)

// routeDims is the number of dimensions of the residual stream, after the constant one, that
// depend on the token alone: no layer writes to these dimensions, and routers read only
// these. So a token's experts do not depend on the result of attention. Otherwise rounding
// could choose other experts, and two right answers could differ by far more than rounding.
//
// Rounding alone must not choose either. A token has ±1 in all of these dimensions but the last, and 1 there.
// A router has ±1 as well, and a multiple of [routeStep] for the last. The sums for two experts therefore
// differ by an even number plus one to three steps, which is half at least: far more than rounding.
func routeDims(s Shape) int { return min(8, s.Embed/2) }

// routeStep is the difference of two routers' weights for the last dimension.
const routeStep = 0.5

// mixture is a model with experts, whose matrices do not write to the dimensions that routers read.
func mixture(s Shape, parts ...part) layout {
	l := stack(s, parts...)
	l.mix(s)
	return l
}

// mix makes a layout that has experts one of a mixture.
func (l *layout) mix(s Shape) {
	maps.Copy(l.metadata, ggml.KV{
		"expert_count":               uint32(experts),
		"expert_used_count":          uint32(expertsUsed),
		"expert_feed_forward_length": uint32(s.FFN),
	})
	for i := range l.matrices {
		if m := &l.matrices[i]; m.norm == 0 && m.zero > 0 {
			m.zero = 1 + routeDims(s)
		}
	}
	change(l.matrices, embeddingTensor, func(m *matrix) {
		m.route, m.routeBias = routeDims(s), func(int) float64 { return 1 }
	})
}

// gatedExperts is the mixture of experts of layer i.
func gatedExperts(s Shape, i int) []matrix { return expertBlock(s, i, gatedRMS) }

// expertBlock is the mixture of experts of layer i. expertRMS is the RMS of an expert before its last matrix.
func expertBlock(s Shape, i int, expertRMS float64) []matrix {
	gain := layerGain(s, ffnVariance) / expertRMS / expertMixRMS / math.Sqrt(float64(s.FFN))
	route := routeDims(s)
	return []matrix{
		{name: block(i, "ffn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_gate_inp"), in: s.Embed, out: experts, scale: 1 / math.Sqrt(float64(route)), reads: 1 + route,
			route: route, routeBias: func(expert int) float64 { return routeStep * float64(1+expert) }},
		{name: block(i, "ffn_gate_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_up_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_down_exps"), in: s.FFN, out: s.Embed, experts: experts, scale: gain, zero: 1},
	}
}

// sharedExpert is the expert of layer i that every token uses beside its chosen ones.
func sharedExpert(s Shape, i int) []matrix { return gatedMatrices(s, i, "_shexp") }

func expertsAndShared(s Shape, i int) []matrix {
	return append(gatedExperts(s, i), sharedExpert(s, i)...)
}

// gptossExpertRMS is the RMS of g·σ(1.702·g)·(u+1) for g and u of variance 1.
const gptossExpertRMS = 0.9

// A sink is one more score in a softmax, beside n positions whose weights add up to e^(ln n
// + attentionSharpness²/2): e^7.3 for a window of 64.
const (
	sinkMean      = 6.5
	sinkDeviation = 1.5
)

// gptoss has a sink per head, and a sliding window in even layers, of which Ollama keeps the last 4,096 tokens
// in a separate cache. The experts are in f16; OpenAI's models have MXFP4. Queries and keys have no norms.
func gptoss(s Shape) layout {
	l := mixture(s, sharpAttention, func(s Shape, i int) []matrix {
		sinks := matrix{name: fmt.Sprintf("blk.%d.attn_sinks", i), in: s.Heads, norm: sinkMean, scale: sinkDeviation}
		return append(expertBlock(s, i, gptossExpertRMS), sinks)
	})
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	return l
}

// qwen3moe is qwen3 with a mixture of experts in each layer.
func qwen3moe(s Shape) layout { return mixture(s, normedAttention, gatedExperts) }

// llama4Step is the period of layers that attend to all positions, without rotary positions. The other layers
// have rotary positions and attend to their own chunk, which Ollama keeps in a separate cache.
const llama4Step = 4

// llama4 attends in chunks of Shape.Window tokens: a token attends only to its own chunk. Every other layer
// is a mixture of experts: each token uses one expert beside the shared one. The model is text only: the
// engine's source fixes the tokens around an image, from 200,080 on.
func llama4(s Shape) layout {
	l := mixture(s, sharpAttention, alternate(feedForward, expertsAndShared))
	maps.Copy(l.metadata, ggml.KV{
		"expert_used_count":         uint32(1),
		"interleave_moe_layer_step": uint32(2),
		"attention.head_dim":        uint32(s.HeadDim),
		"attention.chunk_size":      uint32(s.Window),
		"no_rope_interval":          uint32(llama4Step),
		"use_qk_norm":               false,             // it would leave attention blunt
		"attention.floor_scale":     float32(s.Window), // queries of layers without chunks grow a little after each chunk
	})
	return l
}

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

// In llama, queries and keys have no norms: the sharpness of attention is in the projections.
func llama(s Shape) layout {
	l := stack(s, sharpAttention, feedForward)
	l.metadata["vocab_size"] = uint32(s.Vocab)
	return l
}

// biasDeviation is the standard deviation of biases, which are added to queries, keys and
// values of variance 1 or more.
const biasDeviation = 0.2

// In qwen2, queries, keys and values have biases.
func qwen2(s Shape) layout {
	return stack(s, sharpAttention, feedForward, func(s Shape, i int) []matrix {
		bias := func(of string, width int) matrix {
			return matrix{name: fmt.Sprintf("blk.%d.%s.bias", i, of), in: width, f32: true, scale: biasDeviation}
		}
		return []matrix{bias("attn_q", s.Heads*s.HeadDim), bias("attn_k", s.KVHeads*s.HeadDim), bias("attn_v", s.KVHeads*s.HeadDim)}
	})
}

func qwen3(s Shape) layout { return stack(s, normedAttention, feedForward) }

// qwen3vl is qwen3 with rotary positions in sections, all equal for text. Images are in a file of their own,
// see [WriteProjector].
func qwen3vl(s Shape) layout {
	l := qwen3(s)
	section := int32(s.HeadDim / 8)
	l.metadata["rope.dimension_sections"] = []int32{2 * section, section, section, 0}
	return l
}

// phi3Short is the number of positions up to which phi3 turns by the factors for short contexts.
const phi3Short = 2048

// phi3 has two sets of factors by which frequencies are divided. A context of more than
// [phi3Short] tokens takes the second for all its positions, so the same token has another key
// there. Projections of one kind are in one tensor.
func phi3(s Shape) layout {
	l := stack(s, func(s Shape, i int) []matrix {
		joined := without(append(sharpAttention(s, i), feedForward(s, i)...), i, "attn_k", "attn_v", "ffn_gate")
		change(joined, block(i, "attn_q"), func(m *matrix) {
			m.name, m.out, m.kv = block(i, "attn_qkv"), (s.Heads+2*s.KVHeads)*s.HeadDim, 2*s.KVHeads*s.HeadDim
		})
		change(joined, block(i, "ffn_up"), func(m *matrix) { m.out *= 2 })
		return joined
	})
	l.metadata["rope.scaling.original_context_length"] = uint32(phi3Short)
	l.metadata["attention.sliding_window"] = uint32(phi3Short - 1) // llama.cpp attends to everything
	l.add(
		matrix{name: "rope_factors_short.weight", in: s.HeadDim / 2, norm: 1},
		matrix{name: "rope_factors_long.weight", in: s.HeadDim / 2, norm: 4},
	)
	return l
}

// olmo3Period is the period of layers that attend to all positions; the others have a
// sliding window, which Ollama keeps in a separate cache.
const olmo3Period = 4

// olmo3 has norms after attention and feed-forward layers and none before them, and
// normalizes all heads' queries and keys together.
func olmo3(s Shape) layout {
	gain := float32(math.Sqrt(attentionSharpness))
	l := stack(s, postNorms, func(s Shape, i int) []matrix {
		matrices := without(append(plainAttention(s, i), feedForward(s, i)...), i, "attn_norm", "ffn_norm")
		for j := range matrices {
			if m := &matrices[j]; m.zero == 0 { // reads the residual stream without a norm
				m.firstColumn = constantColumn(0)
			}
		}
		return append(matrices,
			matrix{name: block(i, "attn_q_norm"), in: s.Heads * s.HeadDim, norm: gain},
			matrix{name: block(i, "attn_k_norm"), in: s.KVHeads * s.HeadDim, norm: gain})
	})
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["attention.sliding_window_pattern"] = eachLayer(s, func(i int) bool { return (i+1)%olmo3Period != 0 })
	return l
}
