package testmodel

import "math"

// phi3Short is the number of positions up to which phi3 turns by the factors for short
// contexts.
const phi3Short = 2048

// phi3 has two sets of factors by which frequencies are divided. A context of more than
// [phi3Short] tokens takes the second for all its positions, so the same token has another key
// there. Projections of one kind are in one tensor.
func phi3(s Shape) layout {
	l := base(s)
	l.metadata["rope.scaling.original_context_length"] = uint32(phi3Short)
	l.metadata["attention.sliding_window"] = uint32(phi3Short - 1) // llama.cpp attends to everything
	for i := range s.Layers {
		for _, m := range append(attentionBlock(s, i, math.Sqrt(attentionSharpness)), feedForward(s, i)...) {
			switch m.name {
			case block(i, "attn_q"):
				m.name, m.out = block(i, "attn_qkv"), (s.Heads+2*s.KVHeads)*s.HeadDim
			case block(i, "ffn_up"):
				m.out *= 2
			case block(i, "attn_k"), block(i, "attn_v"), block(i, "ffn_gate"):
				continue
			}
			l.matrices = append(l.matrices, m)
		}
	}
	l.matrices = append(l.matrices,
		matrix{name: "rope_factors_short.weight", in: s.HeadDim / 2, norm: 1},
		matrix{name: "rope_factors_long.weight", in: s.HeadDim / 2, norm: 4},
	)
	return l
}
