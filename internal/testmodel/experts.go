package testmodel

import "math"

// The experts of a mixture: small, and more than one at a time.
const (
	experts     = 4
	expertsUsed = 2

	ffnPerEmbedOfExperts = 1

	expertMixRMS = 0.75 // RMS of the weighted mean of the used experts
)

// routeDims is the number of dimensions of the residual stream, after the constant one, that
// depend on the token alone: no layer writes to these dimensions, and routers read only
// these. So a token's experts do not depend on the result of attention. Otherwise rounding
// could choose other experts, and two right answers could differ by far more than rounding.
//
// Rounding alone must not choose either. A token has ±1 in all of these dimensions but the
// last, and 1 there. A router has ±1 as well, and a multiple of [routeStep] for the last. The
// sums for two experts therefore differ by an even number plus one to three steps, which is
// half at least: far more than rounding.
func routeDims(s Shape) int { return min(8, s.Embed/2) }

// routeStep is the difference of two routers' weights for the last dimension.
const routeStep = 0.5

// leaveRoute keeps all matrices from writing to the dimensions that routers read.
func leaveRoute(s Shape, l layout) {
	for i := range l.matrices {
		if m := &l.matrices[i]; m.norm == 0 && m.zero > 0 {
			m.zero = 1 + routeDims(s)
		}
	}
	l.change(embeddingTensor, func(m *matrix) {
		m.route, m.routeBias = routeDims(s), func(int) float64 { return 1 }
	})
}

func mixtureMetadata(s Shape, l layout) {
	l.metadata["expert_count"] = uint32(experts)
	l.metadata["expert_used_count"] = uint32(expertsUsed)
	l.metadata["expert_feed_forward_length"] = uint32(s.FFN)
}

// expertBlock is the mixture of experts of layer i. expertRMS is the RMS of an expert before
// its last matrix.
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
func sharedExpert(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / gatedRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "ffn_gate_shexp"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_up_shexp"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down_shexp"), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}
