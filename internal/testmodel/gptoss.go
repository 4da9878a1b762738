package testmodel

import (
	"fmt"
	"math"
)

// gptossExpertRMS is the RMS of g·σ(1.702·g)·(u+1) for g and u of variance 1.
const gptossExpertRMS = 0.9

// A sink is one more score in a softmax, beside n positions whose weights add up to e^(ln n
// + attentionSharpness²/2): e^7.3 for a window of 64.
const (
	sinkMean      = 6.5
	sinkDeviation = 1.5
)

// gptoss always runs on the native engine. Attention has a sink per head; even layers have a
// sliding window, of which Ollama keeps the last 4,096 tokens in a separate cache.
// Feed-forward layers are a mixture of experts, in f16; OpenAI's models have MXFP4. Queries
// and keys have no norms, so the sharpness of attention is in the projections.
func gptoss(s Shape) layout {
	l := base(s)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	mixtureMetadata(s, l)
	for i := range s.Layers {
		l.matrices = append(l.matrices, attentionBlock(s, i, math.Sqrt(attentionSharpness))...)
		l.matrices = append(l.matrices, matrix{name: fmt.Sprintf("blk.%d.attn_sinks", i), in: s.Heads, norm: sinkMean, scale: sinkDeviation})
		l.matrices = append(l.matrices, expertBlock(s, i, gptossExpertRMS)...)
	}
	leaveRoute(s, l)
	return l
}
