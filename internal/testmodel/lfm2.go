package testmodel

import "math"

// convTaps is the number of tokens that a short convolution reads: its state holds the
// inputs of the last convTaps - 1 tokens.
const convTaps = 3

// lfm2 has short convolutions in every other layer, and always runs on the native engine,
// one request at a time.
func lfm2(s Shape) layout {
	l := base(s)
	l.metadata["vocab_size"] = uint32(s.Vocab)
	l.metadata["attention.head_count_kv"] = hybridKVHeads(s)
	l.metadata["shortconv.l_cache"] = uint32(convTaps)
	for i := range s.Layers {
		if isRecurrent(i) {
			l.matrices = append(l.matrices, shortConvolution(s, i)...)
		} else {
			l.matrices = append(l.matrices, attentionBlock(s, i, 1)...)
			l.matrices = append(l.matrices, headNorms(s, i)...)
		}
		l.matrices = append(l.matrices, feedForward(s, i)...)
	}
	return l
}

// shortConvolution multiplies two of its three projections, convolves the products of the
// last three tokens, and multiplies the result with the third projection.
func shortConvolution(s Shape, i int) []matrix {
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "shortconv.in_proj"), in: s.Embed, out: 3 * s.Embed, scale: perInput(s)},
		{name: block(i, "shortconv.conv"), in: convTaps, out: s.Embed, f32: true, scale: 1 / math.Sqrt(convTaps)},
		{name: block(i, "shortconv.out_proj"), in: s.Embed, out: s.Embed, scale: layerGain(s, attentionVariance) * perInput(s), zero: 1},
	}
}
