package testmodel

import (
	"fmt"
	"math"
)

// The experts of gptoss: small, and more than one at a time.
const (
	experts     = 4
	expertsUsed = 2

	ffnPerEmbedOfExperts = 1

	expertRMS    = 0.9  // of g·σ(1.702·g)·(u+1) for g and u of variance 1
	expertMixRMS = 0.75 // of a softmax-weighted mean of as many as are used
)

// routeDims is how many dimensions of the residual stream, after the constant
// one, are the token's alone: no layer writes to them and routers read nothing
// else. So a token's experts are the same whatever attention computed. Were they
// not, rounding could choose others, and two right answers differ by far more
// than rounding.
func routeDims(s Shape) int { return min(8, s.Embed/2) }

// Sinks take part in a softmax as one more score, beside n positions whose
// weights add up to e^(ln n + attentionSharpness²/2): e^7.3 for a window of 64.
const (
	sinkMean      = 6.5
	sinkDeviation = 1.5
)

// gptoss always runs on the native engine. Its attention has a sink per head and
// its even layers a sliding window; Ollama keeps the last 4,096 tokens of these in
// a cache of their own. Its feed-forward layers are a mixture of experts, f16
// here where OpenAI's models have MXFP4. It has no norms of queries and keys, so
// the sharpness of attention is in the projections.
func gptoss(s Shape) layout {
	l := base(s)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["expert_count"] = uint32(experts)
	l.metadata["expert_used_count"] = uint32(expertsUsed)
	l.metadata["expert_feed_forward_length"] = uint32(s.FFN)
	for i := range s.Layers {
		attention := attentionBlock(s, i, math.Sqrt(attentionSharpness))
		for j := range attention {
			if m := &attention[j]; m.name == block(i, "attn_output") {
				m.zero = 1 + routeDims(s)
			}
		}
		l.matrices = append(l.matrices, attention...)
		l.matrices = append(l.matrices, matrix{name: fmt.Sprintf("blk.%d.attn_sinks", i), in: s.Heads, norm: sinkMean, scale: sinkDeviation})
		l.matrices = append(l.matrices, expertBlock(s, i)...)
	}
	return l
}

// expertBlock is the mixture of experts of layer i.
func expertBlock(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / expertRMS / expertMixRMS / math.Sqrt(float64(s.FFN))
	route := routeDims(s)
	return []matrix{
		{name: block(i, "ffn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_gate_inp"), in: s.Embed, out: experts, scale: 1 / math.Sqrt(float64(route)), reads: 1 + route},
		{name: block(i, "ffn_gate_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_up_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_down_exps"), in: s.FFN, out: s.Embed, experts: experts, scale: gain, zero: 1 + route},
	}
}
