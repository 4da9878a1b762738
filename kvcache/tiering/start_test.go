package tiering

import (
	"errors"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs"
	ollama "github.com/ollama/ollama/kvcache"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/testmodel"
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

// on turns tiering on for a test, in a new local directory and with more variables.
func on(t *testing.T, more map[string]string) (root string) {
	root = filepath.Join(t.TempDir(), "pages")
	vars := map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root}
	maps.Copy(vars, more)
	tierenvtest.Set(t, vars)
	return root
}

// started starts a model whose cache is a plain one, and returns the lines that are logged.
func started(t *testing.T, m Model) (tiered *kvcache.TieredCausal, lines chan string) {
	lines = make(chan string, 64)
	tiered, _, err := start(m, plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
	require.NoError(t, err)
	return tiered, lines
}

func TestStartSaysWhatIsOn(t *testing.T) {
	root := filepath.Join(t.TempDir(), "below", "pages")
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root})
	tiered, lines := started(t, testModelAt(t))
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
		on(t, nil)
		model := testModelAt(t)
		change(&model)
		_, _, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.DiscardHandler))
		require.Error(t, err, name)
	}
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": "/proc/kvtier"})
	require.Nil(t, Start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}))
}

func TestQueuedBytes(t *testing.T) {
	for available, want := range map[uint64]int64{
		0:         64 << 20,
		4 << 30:   512 << 20,
		8 << 30:   1 << 30,
		512 << 30: 1 << 30,
	} {
		require.Equal(t, want, queuedBytes(available, nil), available)
	}
	require.EqualValues(t, 1<<30, queuedBytes(0, errors.New("not Linux")))
}

// windowedCache is a cache that drops positions.
type windowedCache struct{ plainCache }

func (windowedCache) RowWindow() (window, memory int32) { return 1024, 1024 }

// Pages of a cache in f16 without windows become lossy, and the start line says so. For other models
// one line says why they do not.
func TestStartSaysWhetherPagesBecomeLossy(t *testing.T) {
	for name, test := range map[string]struct {
		cold, cacheType string
		rows            kvcache.Rows
		says            []string // lines
	}{
		"asked":     {"q8_0,int4", "f16", plainCache{}, []string{`kv tier: on.* cold_type=q8_0,int4 lossy_pages=0`}},
		"not asked": {"", "f16", plainCache{}, []string{`kv tier: on`}},
		"quantized": {"q4_0", "q8_0", plainCache{}, []string{`no page becomes lossy.*the type of the KV cache is q8_0`, `kv tier: on`}},
		"windows":   {"q4_0", "f16", windowedCache{}, []string{`no page becomes lossy.*a window`, `kv tier: on`}},
		"misspelt":  {"q9_0", "f16", plainCache{}, []string{`invalid environment variable.*q9_0`, `kv tier: on`}},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, map[string]string{"OLLAMA_KV_TIER_REMOTE": t.TempDir(), "OLLAMA_KV_TIER_COLD_TYPE": test.cold})
			m := testModelAt(t)
			m.CacheType = test.cacheType
			lines := make(chan string, 8)
			tiered, _, err := start(m, plainCache{}, []kvcache.Rows{test.rows}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
			require.NoError(t, err)
			for _, says := range test.says {
				require.Regexp(t, says, <-lines)
			}
			tiered.Close()
		})
	}
}

// The whole context of a model is cells times the bytes of a token.
func TestContextBytes(t *testing.T) {
	small := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, testmodel.Write(path, small))
	for cells, want := range map[int]int64{0: 0, 1: 256, 8192 * 4: 8192 * 4 * small.KVBytesPerToken()} {
		n, err := contextBytes(Model{Path: path, CacheType: "f16", Cells: cells})
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	_, err := contextBytes(Model{Path: path, Cells: -1})
	require.ErrorContains(t, err, "not one that can be divided")
	_, err = contextBytes(Model{Path: filepath.Join(t.TempDir(), "none.gguf"), Cells: 1})
	require.ErrorContains(t, err, "read the model's shape")
}

// The budgets of a loaded model follow from its context, and its start line has them.
func TestSplitBudgets(t *testing.T) {
	m := testModelAt(t)
	small := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	require.NoError(t, testmodel.Write(m.Path, small))
	for cells, says := range map[int]string{
		10_000_000: `local_budget="1.9 GB" .* ram_budget="640 MB"`, // 10,000,000 tokens of 256 bytes: 2.56 GB
		0:          `local_budget="20 GB"`,
	} {
		on(t, map[string]string{"OLLAMA_KV_TIER_SPLIT": "25,25,50"})
		m.Cells = cells
		tiered, lines := started(t, m)
		require.Contains(t, <-lines, "OLLAMA_KV_TIER_SPLIT")
		require.Regexp(t, says, <-lines)
		tiered.Close()
	}
}

// HOT is the first limit of elastic memory, and the log names what it sets: nothing where no memory has a
// limit, or the user has set one.
func TestHotOfASplit(t *testing.T) {
	const host, limit = "OLLAMA_PAGED_HOST_GB", "OLLAMA_KVCACHED_LIMIT_MB"
	for _, test := range []struct {
		split, cached, hostGB, limitMB string
		paged                          bool
		sets                           string
		elastic                        uint64 // of 1,000 bytes
	}{
		{split: "25,25,50", elastic: 250},
		{split: "25,25,50", cached: "1", sets: limit, elastic: 250},
		{split: "25,25,50", cached: "1", limitMB: "0", sets: limit, elastic: 250},
		{split: "25,25,50", cached: "1", limitMB: "4", elastic: 1000},
		{split: "0,25,75", cached: "1", elastic: 1000},
		{split: "", cached: "1", elastic: 1000},
		{split: "25,25,50", paged: true, sets: host, elastic: 250},
		{split: "25,25,50", paged: true, hostGB: "2", elastic: 250},
		{split: "25,25,50", paged: true, cached: "0", limitMB: "4", sets: host, elastic: 1000},
	} {
		on(t, map[string]string{"OLLAMA_KV_TIER_SPLIT": test.split, "OLLAMA_KVCACHED": test.cached, host: test.hostGB, limit: test.limitMB})
		require.Equal(t, test.sets, Model{Paged: test.paged}.hotSets(), "%+v", test)
		require.Equal(t, test.elastic, ElasticLimit(1000), "%+v", test)
	}
}

func TestTieringLeavesRoomForGoroutines(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	on(t, nil)
	after := func(model Model) int {
		runtime.GOMAXPROCS(1)
		log, _ := tierenvtest.Logger()
		if tiered, _, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, log); err == nil {
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

func TestRAMBudget(t *testing.T) {
	for value, says := range map[string]string{"": "", "0": "", "1.5": `ram_budget="1.5 GB"`} {
		on(t, map[string]string{"OLLAMA_KV_TIER_RAM_GB": value})
		tiered, lines := started(t, testModelAt(t))
		line := <-lines
		if says == "" {
			require.NotContains(t, line, "ram")
		} else {
			require.Contains(t, line, says)
		}
		tiered.Close()
	}
	for _, value := range []string{"lots", "-1", "NaN", "1e300"} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_TIER_RAM_GB": value})
		_, _, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, "OLLAMA_KV_TIER_RAM_GB")
		require.ErrorContains(t, err, value)
	}
}

// TestServer starts two processes, which print the name of their server.
func TestServer(t *testing.T) {
	const asked = "KVTIER_TEST_SERVER"
	if os.Getenv(asked) != "" {
		os.Stdout.WriteString("<" + server() + ">")
		return
	}
	child := func() string {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestServer$")
		cmd.Env = append(os.Environ(), asked+"=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out[:max(0, len(out)-len("PASS\n"))])
	}
	first := child()
	require.Contains(t, first, "<")
	require.Equal(t, first, child())
	require.NotContains(t, first, server(), "this process has another parent")
	if runtime.GOOS == "linux" {
		require.NotEmpty(t, startOf(os.Getpid()))
		require.NotEqual(t, startOf(1), startOf(os.Getpid()))
		require.NotContains(t, startOf(os.Getpid()), "\n")
		startOf(1 << 30) // no such process
	}
}
