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

// Hybrid models have layers without K/V, which keep a state of constant size for a whole
// sequence that each token changes. Here every other layer is of this kind, from the first
// on.

func isRecurrent(layer int) bool { return layer%2 == 0 }

// hybridKVHeads is the number of key/value heads of each layer, 0 in recurrent layers.
func hybridKVHeads(s Shape) []uint32 {
	var heads []uint32
	for i := range s.Layers {
		if isRecurrent(i) {
			heads = append(heads, 0)
		} else {
			heads = append(heads, uint32(s.KVHeads))
		}
	}
	return heads
}

func hybridPerToken(s Shape) int { return 2 * (s.Layers / 2) * s.KVHeads * s.HeadDim }
