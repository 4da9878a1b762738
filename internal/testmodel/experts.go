package testmodel

import "math"

// The experts of a mixture: small, and more than one at a time.
const (
	experts     = 4
	expertsUsed = 2

	ffnPerEmbedOfExperts = 1

	expertMixRMS = 0.75 // of a weighted mean of as many as are used
)

// routeDims is how many dimensions of the residual stream, after the constant
// one, are the token's alone: no layer writes to them and routers read nothing
// else. So a token's experts do not depend on the result of attention. If they
// did, rounding could choose others, and two right answers differ by far more
// than rounding.
func routeDims(s Shape) int { return min(8, s.Embed/2) }

// leaveRoute keeps everything that writes to the residual stream out of the
// dimensions that routers read.
func leaveRoute(s Shape, l layout) {
	for i := range l.matrices {
		if m := &l.matrices[i]; m.norm == 0 && m.zero > 0 {
			m.zero = 1 + routeDims(s)
		}
	}
}

func mixtureMetadata(s Shape, l layout) {
	l.metadata["expert_count"] = uint32(experts)
	l.metadata["expert_used_count"] = uint32(expertsUsed)
	l.metadata["expert_feed_forward_length"] = uint32(s.FFN)
}

// expertBlock is the mixture of experts of layer i, each of which has that RMS
// before its last matrix.
func expertBlock(s Shape, i int, expertRMS float64) []matrix {
	gain := layerGain(s, ffnVariance) / expertRMS / expertMixRMS / math.Sqrt(float64(s.FFN))
	route := routeDims(s)
	return []matrix{
		{name: block(i, "ffn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_gate_inp"), in: s.Embed, out: experts, scale: 1 / math.Sqrt(float64(route)), reads: 1 + route},
		{name: block(i, "ffn_gate_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_up_exps"), in: s.Embed, out: s.FFN, experts: experts, scale: perInput(s)},
		{name: block(i, "ffn_down_exps"), in: s.FFN, out: s.Embed, experts: experts, scale: gain, zero: 1},
	}
}

// sharedExpert is the expert of layer i that every token has beside those chosen
// for it.
func sharedExpert(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / gatedRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "ffn_gate_shexp"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_up_shexp"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down_shexp"), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}
