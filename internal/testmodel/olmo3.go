package testmodel

import "math"

// olmo3Period is the period of layers that attend to all positions; the others have a
// sliding window, which Ollama keeps in a separate cache.
const olmo3Period = 4

// olmo3 has norms after attention and feed-forward layers and none before them, and
// normalizes all heads' queries and keys together.
func olmo3(s Shape) layout {
	l := base(s)
	var windows []bool
	for i := range s.Layers {
		windows = append(windows, (i+1)%olmo3Period != 0)
		for _, m := range append(attentionBlock(s, i, 1), feedForward(s, i)...) {
			switch {
			case m.norm != 0:
				continue
			case m.zero == 0: // reads the residual stream without a norm
				m.firstColumn = constantColumn(0)
			}
			l.matrices = append(l.matrices, m)
		}
		gain := float32(math.Sqrt(attentionSharpness))
		l.matrices = append(l.matrices,
			matrix{name: block(i, "attn_q_norm"), in: s.Heads * s.HeadDim, norm: gain},
			matrix{name: block(i, "attn_k_norm"), in: s.KVHeads * s.HeadDim, norm: gain},
		)
		l.matrices = append(l.matrices, postNorms(s, i)...)
	}
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["attention.sliding_window_pattern"] = windows
	return l
}

// postNorms are the norms of models that normalize their additions to the residual stream:
// these norms hold the share of each layer.
func postNorms(s Shape, i int) []matrix {
	return []matrix{
		{name: block(i, "post_attention_norm"), in: s.Embed, norm: float32(layerGain(s, attentionVariance))},
		{name: block(i, "post_ffw_norm"), in: s.Embed, norm: float32(layerGain(s, ffnVariance))},
	}
}
