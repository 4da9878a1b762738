package testmodel

import (
	"fmt"
	"math"
)

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
