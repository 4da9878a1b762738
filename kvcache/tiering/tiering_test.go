package tiering

import (
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs"
	ollama "github.com/ollama/ollama/kvcache"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFingerprintDependsOnEveryField(t *testing.T) {
	model := Model{Path: "/models/sha256-" + strings.Repeat("a", 64), Architecture: "qwen3", Config: oneLayer{}, CacheType: "f16", Numerics: "CPU AVX2=1"}
	config := tierenv.Config{PageTokens: 256}
	base, err := identityOf(model, config, digests.Open(""))
	require.NoError(t, err)
	require.Len(t, base, 8)
	for key := range base {
		changed := maps.Clone(base)
		changed[key] += "x"
		require.NotEqual(t, tierenv.Fingerprint(base), tierenv.Fingerprint(changed), key)
	}
	require.Equal(t, tierenv.Fingerprint(base), tierenv.Fingerprint(maps.Clone(base)))

	// no value can pass for another key
	a := map[string]string{"a": "1;1:b=1:2", "b": "3"}
	b := map[string]string{"a": "1", "b": "2;1:b=1:3"}
	require.NotEqual(t, tierenv.Fingerprint(a), tierenv.Fingerprint(b))
}

// plainCache is a cache of one layer; nothing is computed in it.
type plainCache struct{ ollama.Cache }

func (plainCache) RowLayers() []int                           { return []int{0} }
func (plainCache) RowBytes(int, bool) (int, error)            { return 64, nil }
func (plainCache) ReadRows(int, bool, []int32, []byte) error  { return nil }
func (plainCache) WriteRows(int, bool, []int32, []byte) error { return nil }
func (plainCache) SynchronizeRows()                           {}
func (plainCache) BatchCells() []int32                        { return nil }
func (plainCache) RowWindow() (window, memory int32)          { return math.MaxInt32, math.MaxInt32 }
func (plainCache) ShiftRows([]int32, int32) error             { return ollama.ErrNotSupported }
func (plainCache) ReserveCells(int, int32, int32, []int32) ([]int32, error) {
	return nil, ollama.ErrKvCacheFull
}
func (plainCache) Close() {}

// oneLayer is the configuration of a model of one layer.
type oneLayer struct{ fs.Config }

func (oneLayer) Uint(key string, _ ...uint32) uint32 {
	if key == "block_count" {
		return 1
	}
	return 0
}

func testModelAt(t *testing.T) Model {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, []byte("weights"), 0o600))
	return Model{Path: path, Architecture: "qwen3", Config: oneLayer{}, CacheType: "f16", Numerics: "CPU"}
}

func TestStartSaysWhatIsOn(t *testing.T) {
	root := filepath.Join(t.TempDir(), "below", "pages")
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root})
	lines := make(chan string, 8)
	tiered, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
	require.NoError(t, err)
	line := <-lines
	for _, part := range []string{"kv tier: on", "local=" + root, `local_budget="20 GB"`, "pages=0", "fingerprint="} {
		require.Contains(t, line, part)
	}
	tiered.Close()
	info, err := os.Stat(root)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

// lineWriter sends each line that is logged.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

func TestStartRefuses(t *testing.T) {
	for name, change := range map[string]func(*Model){
		"unknown":         func(m *Model) { m.Architecture = "qwen25vl" },
		"another cache":   func(m *Model) { m.Unsupported = "its cache keeps more than attention" },
		"missing weights": func(m *Model) { m.Path += ".gone" },
		"missing adapter": func(m *Model) { m.Adapters = []string{m.Path + ".gone"} },
	} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages")})
		model := testModelAt(t)
		change(&model)
		log, _ := tierenvtest.Logger()
		_, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, log)
		require.Error(t, err, name)
	}
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": "/proc/kvtier"})
	require.Nil(t, Start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}))
}
