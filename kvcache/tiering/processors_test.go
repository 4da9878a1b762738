package tiering

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

func TestTieringLeavesRoomForGoroutines(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages")})
	after := func(model Model) int {
		runtime.GOMAXPROCS(1)
		log, _ := tierenvtest.Logger()
		if tiered, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, log); err == nil {
			tiered.Close()
		}
		return runtime.GOMAXPROCS(0)
	}

	t.Setenv("GOMAXPROCS", "") // hides the variable of the tester's shell
	require.Equal(t, processorsMin, after(testModelAt(t)))
	refused := testModelAt(t)
	refused.Architecture = "qwen25vl"
	require.Equal(t, 1, after(refused), "without tiering nothing changes")
	t.Setenv("GOMAXPROCS", "1")
	require.Equal(t, 1, after(testModelAt(t)), "a value set by the user stays")
}
