package identity

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/launch"
)

// TestIdentityNamesTheCacheType: tools show it. Slots of another shape have other pages, too.
func TestIdentityNamesTheCacheType(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "model.gguf")
	require.NoError(t, os.WriteFile(model, []byte("weights"), 0o600))
	files := digests.Open(filepath.Join(dir, "digests.json"))
	identity := func(row int64) map[string]string {
		shape := &llamastate.Shape{Version: 2, Caches: []llamastate.Cache{{
			Kind: llamastate.Full, Streams: 1, Layers: 1,
			Tensors: [2][]llamastate.Tensor{{{Type: 8, Row: row}}, {{Type: 1, Row: row}}},
		}}}
		id, err := Of(launch.Command{Args: []string{"-m", model}}, nil, tierenv.Config{PageTokens: 256}, shape, os.Getpid(), files)
		require.NoError(t, err)
		return id
	}
	one, other := identity(64), identity(128)
	require.Equal(t, "q8_0/f16", one[tierenv.KeyCacheType])
	require.Len(t, one[tierenv.KeyShape], 64)
	require.NotEqual(t, tierenv.Fingerprint(one), tierenv.Fingerprint(other))
}
