package pagefile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLeads: no page shares more tokens with another than its leads allow, and a page that
// differs in a part is told apart from one that does not, except for equal hashes.
func TestLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 300).Draw(t, "page tokens")
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 1<<20), size, size).Draw(t, "tokens")
		shared := rapid.IntRange(0, size).Draw(t, "shared")
		prompt := append([]int32(nil), tokens[:rapid.IntRange(shared, size).Draw(t, "prompt")]...)
		for i := shared; i < len(prompt); i++ {
			prompt[i] = -1 - tokens[i]
		}
		page, all := LeadsOf(tokens, nil, size)
		require.Equal(t, Parts, all)
		leads, parts := LeadsOf(prompt, nil, size)
		require.GreaterOrEqual(t, page.Most(leads, parts, size), shared)
	})
}

func TestLeadsTellPagesApart(t *testing.T) {
	tokens := make([]int32, 256)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	other := append([]int32(nil), tokens...)
	other[100] = -1
	page, _ := LeadsOf(tokens, nil, 256)
	leads, parts := LeadsOf(other, nil, 256)
	require.Equal(t, 103, page.Most(leads, parts, 256), "the difference is in the thirteenth part, tokens 96 to 103")
	leads, parts = LeadsOf(tokens[:40], nil, 256)
	require.Equal(t, 5, parts)
	require.Equal(t, 256, page.Most(leads, parts, 256))
	leads, parts = LeadsOf(tokens, []Media{{Offset: 20, Hash: [32]byte{1}}}, 256)
	require.Equal(t, 23, page.Most(leads, parts, 256), "another image")
}
