package testmodel

// qwen35 is qwen3next with other names, and another order of heads, which random weights do
// not show. Rotary positions are in sections, all equal for text. The model is text only:
// the file could name an image's tokens, but this package writes no small tower of that
// kind.
func qwen35(s Shape) layout {
	l := linearModel(s)
	rotary := l.metadata["rope.dimension_count"].(uint32)
	section := int32(rotary / 8)
	l.metadata["rope.dimension_sections"] = []int32{int32(rotary/2) - 2*section, section, section, 0}
	l.metadata["rope.mrope_interleaved"] = true
	for i := range s.Layers {
		if isRecurrent(i) {
			l.matrices = append(l.matrices,
				matrix{name: block(i, "ssm_beta"), in: s.Embed, out: linearHeads, scale: perInput(s)},
				matrix{name: block(i, "ssm_alpha"), in: s.Embed, out: linearHeads, scale: perInput(s)},
			)
		}
	}
	return l
}
