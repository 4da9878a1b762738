package pairs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachPairOnce(t *testing.T) {
	names := make(map[string]bool)
	refusals := 0
	for _, p := range All() {
		require.False(t, names[p.String()] || p.A == p.B, p)
		names[p.String()] = true
		if p.Refused != "" {
			refusals++
		}
	}
	require.Len(t, names, len(Features)*(len(Features)-1)/2)
	require.Len(t, refused, refusals, "a refusal whose features are in another order than in Features")
}
