package testmodel

import (
	"fmt"
	"math"
)

// nemotronHSize has two recurrent, two attention and four feed-forward layers.
var nemotronHSize = Shape{Layers: 8, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

const (
	nemotronHPeriod = 4 // layers: recurrent, feed-forward, attention, feed-forward

	// The state of a recurrent layer is scanState × scanDim numbers for each of scanHeads
	// heads. Two heads share the projections that read and write the state.
	scanState  = 32
	scanDim    = 32
	scanHeads  = 4
	scanGroups = 2
	scanTaps   = 4

	scanInner   = scanHeads * scanDim
	scanChannel = scanInner + 2*scanGroups*scanState

	squaredReluRMS = 1.22 // RMS of max(0, x)² for x of variance 1
)

// nemotronH has layers that are either attention, a recurrent state or a feed-forward part.
// Attention has no positions.
func nemotronH(s Shape) layout {
	l := base(s)
	part := s
	part.Layers = max(1, s.Layers/2) // layers of other architectures with the same effect on the residual stream
	var kvHeads, ffn []uint32
	for i := range s.Layers {
		heads, width := 0, 0
		switch i % nemotronHPeriod {
		case 0:
			l.matrices = append(l.matrices, scan(part, i)...)
		case 2:
			heads = s.KVHeads
			l.matrices = append(l.matrices, attentionBlock(part, i, math.Sqrt(attentionSharpness))...)
		default:
			width = s.FFN
			l.matrices = append(l.matrices, squaredFeedForward(part, i)...)
		}
		kvHeads, ffn = append(kvHeads, uint32(heads)), append(ffn, uint32(width))
	}
	l.metadata["attention.head_count_kv"] = kvHeads
	l.metadata["feed_forward_length"] = ffn
	l.metadata["ssm.inner_size"] = uint32(scanInner)
	l.metadata["ssm.state_size"] = uint32(scanState)
	l.metadata["ssm.group_count"] = uint32(scanGroups)
	l.metadata["ssm.time_step_rank"] = uint32(scanHeads)
	l.metadata["ssm.conv_kernel"] = uint32(scanTaps)
	return l
}

// scan is recurrent layer i, a selective scan as in Mamba 2.
func scan(s Shape, i int) []matrix {
	gain := layerGain(s, attentionVariance) / math.Sqrt(scanInner)
	bare := func(tensor string) string { return fmt.Sprintf("blk.%d.%s", i, tensor) }
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ssm_in"), in: s.Embed, out: scanInner + scanChannel + scanHeads, scale: perInput(s)},
		{name: block(i, "ssm_conv1d"), in: scanTaps, out: scanChannel, f32: true, scale: 1 / math.Sqrt(scanTaps)},
		{name: bare("ssm_conv1d.bias"), in: scanChannel, f32: true, scale: biasDeviation},
		{name: bare("ssm_dt.bias"), in: scanHeads, norm: decayMean, scale: decayDeviation},
		{name: bare("ssm_a"), in: 1, out: scanHeads, norm: -1},
		{name: bare("ssm_d"), in: 1, out: scanHeads, norm: scanSkip},
		{name: block(i, "ssm_norm"), in: scanInner / scanGroups, out: scanGroups, norm: 1},
		{name: block(i, "ssm_out"), in: scanInner, out: s.Embed, scale: gain, zero: 1},
	}
}

// scanSkip is the share of a scan's input that bypasses the state. A much larger share would
// drown the state's memory of earlier tokens.
const scanSkip = 0.1

// squaredFeedForward is layer i if it is a feed-forward part.
func squaredFeedForward(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / squaredReluRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_up"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down"), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}

func nemotronHPerToken(s Shape) int {
	return 2 * ((s.Layers + 1) / nemotronHPeriod) * s.KVHeads * s.HeadDim
}
