package testmodel

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
