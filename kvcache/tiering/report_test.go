package tiering

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// collected reads a root's state until it is as wanted.
func collected(t *testing.T, root string, wanted func(telemetry.State) bool) telemetry.State {
	t.Helper()
	for {
		state, err := collect.Read(t.Context(), root)
		if err == nil && wanted(state) {
			return state
		}
		require.NoError(t, t.Context().Err(), "%+v", state)
	}
}

// serving names the root of a test, and tells of it as a server does.
func serving(t *testing.T, vars map[string]string) (root string) {
	root = filepath.Join(t.TempDir(), "pages")
	vars["OLLAMA_KV_TIERING"], vars["OLLAMA_KV_TIER_LOCAL"] = "1", root
	tierenvtest.Set(t, vars)
	release, err := ClaimInstance()
	require.NoError(t, err)
	t.Cleanup(release)
	require.NoDirExists(t, root, "the first model makes it")
	return root
}

// TestAServerCollectsFromItsRunners loads a model beside a server without an id.
func TestAServerCollectsFromItsRunners(t *testing.T) {
	remote := t.TempDir()
	root := serving(t, map[string]string{
		"OLLAMA_KV_TIER_RAM_GB": "1", "OLLAMA_KV_TIER_LOCAL_GB": "2", "OLLAMA_KV_TIER_REMOTE": remote,
		"OLLAMA_KV_TIER_WRITE_GB_PER_DAY": "3", "OLLAMA_KV_TIER_NAMESPACE": "team",
	})
	model := testModelAt(t)
	tiered, lines := started(t, model)
	closed := sync.OnceFunc(tiered.Close)
	t.Cleanup(closed)
	line := <-lines
	for _, part := range []string{"local_tokens=15625000", "ram_tokens=7812500"} { // 128 bytes each
		require.Contains(t, line, part)
	}
	require.NotContains(t, line, "remote_tokens", "all but a part of the disk")

	state := collected(t, root, func(s telemetry.State) bool { return len(s.Processes) == 1 && len(s.Tiers) == 3 })
	require.True(t, state.Live)
	p := state.Processes[0]
	require.Equal(t, collect.Self(telemetry.EngineOllama), p.Process)
	require.Equal(t, os.Getpid(), p.Process.PID)
	require.Equal(t, "ollama", p.Process.Engine)
	require.Equal(t, "qwen3", p.Model.Architecture)
	require.Equal(t, "team", p.Model.Namespace)
	require.Equal(t, "f16", p.Model.CacheType)
	require.Equal(t, 256, p.Model.PageTokens)
	require.Len(t, p.Model.Weights, 64)
	require.Len(t, p.Model.Fingerprint, 64)
	require.Contains(t, line, "fingerprint="+p.Model.Fingerprint[:12])
	by := make(map[string]telemetry.Tier)
	for _, tier := range state.Tiers {
		by[tier.Name] = tier
	}
	require.EqualValues(t, 2e9, by["local"].Budget)
	require.EqualValues(t, 3e9, by["local"].WriteCap)
	require.Equal(t, root, by["local"].Root)
	require.Equal(t, remote, by["remote"].Root)
	require.Zero(t, by["remote"].Budget)

	// A prompt is in the state before Close has returned, as after a flush.
	var mu sync.Mutex
	mu.Lock()
	_, err := tiered.Restore(t.Context(), &mu, 0, 0, []*input.Input{{Token: 1}, {Token: 2}}, func(int) {})
	mu.Unlock()
	require.NoError(t, err)
	closed()
	state, err = collect.Read(t.Context(), root)
	require.NoError(t, err)
	require.EqualValues(t, 1, state.Models[0].Totals["ollama_kv_prompts_total"])
	require.EqualValues(t, 2, state.Models[0].Totals[`ollama_kv_prompt_tokens_total{source="computed"}`])
}

// TestEverySeriesIsKnown compares the series of a report with the list of metrics.
func TestEverySeriesIsKnown(t *testing.T) {
	on(t, map[string]string{"OLLAMA_KV_TIER_RAM_GB": "1", "OLLAMA_KV_TIER_REMOTE": t.TempDir()})
	log, _ := tierenvtest.Logger()
	tiered, s, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, log)
	require.NoError(t, err)
	defer tiered.Close()
	report := s.Report()
	reported := make(map[string]bool)
	for _, series := range []map[string]float64{report.Totals, report.Gauges} {
		for key := range series {
			name, _, _ := strings.Cut(key, "{")
			_, known := telemetry.Find(name)
			require.True(t, known, key)
			reported[name] = true
		}
	}
	for _, m := range telemetry.Metrics {
		switch {
		case reported[m.Name], strings.HasPrefix(m.Name, "ollama_kv_paged_"): // with paged attention
		case strings.HasPrefix(m.Name, "ollama_kv_tier_"), m.Name == "ollama_kv_memory_bytes": // of Tiers, Memory
		case m.Name == "ollama_kv_elastic_bytes": // of segments of elastic memory, read by expose
		case strings.HasPrefix(m.Name, "ollama_kv_prompt"), strings.HasPrefix(m.Name, "ollama_kv_restore"),
			strings.HasPrefix(m.Name, "ollama_kv_miss"): // of Meter.Prompt, with the first prompt
		case m.Name == "ollama_kv_saved_seconds_total", m.Name == "ollama_kv_lossy_tokens_total", m.Name == "ollama_kv_page_faults_total", m.Name == "ollama_kv_sealed_pages_total", m.Name == "ollama_kv_not_stored_total":
		default:
			t.Errorf("no report has %s", m.Name)
		}
	}
	require.Len(t, report.Memory, 6)
}

// A server that is off, or whose directory others may write to, starts and makes nothing.
func TestNothingIsCollected(t *testing.T) {
	for on, mode := range map[string]os.FileMode{"": 0o700, "1": 0o777} {
		root := t.TempDir()
		require.NoError(t, os.Chmod(root, mode))
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": on, "OLLAMA_KV_TIER_LOCAL": root})
		release, err := ClaimInstance()
		require.NoError(t, err)
		release()
		entries, err := os.ReadDir(root)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

// A model is closed in time where no server runs.
func TestClosingWithoutAServer(t *testing.T) {
	on(t, nil)
	tiered, _ := started(t, testModelAt(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 {
		require.NoError(t, tiered.Flush(ctx), "asking for a report waits for nothing")
	}
	tiered.Close()
}

// TestFlushTellsWhatWasCounted: the server kills a runner right after its flush.
func TestFlushTellsWhatWasCounted(t *testing.T) {
	root := serving(t, map[string]string{})
	log, _ := tierenvtest.Logger()
	tiered, source, err := start(testModelAt(t), plainCache{}, []kvcache.Rows{plainCache{}}, log)
	require.NoError(t, err)
	t.Cleanup(tiered.Close)
	collected(t, root, func(s telemetry.State) bool { return len(s.Processes) == 1 })
	told := 0
	for n := 1; n <= 8; n++ {
		source.Meter.Add("ollama_kv_restores_total", 1)
		require.NoError(t, tiered.Flush(t.Context()))
		state, err := collect.Read(t.Context(), root)
		require.NoError(t, err)
		if state.Models[0].Totals["ollama_kv_restores_total"] == float64(n) {
			told++
		}
	}
	require.Greater(t, told, 4, "the wait has a bound")
}

// TestForgetRemovesPrompts: the latest prompts go with the pages, and files that tell no model; the counts
// stay.
func TestForgetRemovesPrompts(t *testing.T) {
	root := serving(t, map[string]string{"OLLAMA_KV_TIER_NAMESPACE": "team"})
	require.NoError(t, os.Mkdir(root, 0o700))
	source := &telemetry.Source{
		Process: collect.Self(telemetry.EngineOllama), Started: time.Now(), Meter: new(telemetry.Meter),
		Model: telemetry.Model{Weights: digest("8"), Namespace: "team"},
	}
	source.Meter.Prompt(telemetry.Prompt{At: time.Now(), Tokens: 1, Computed: 1})
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collect.Push(ctx, root, source, collect.Options{})
	}()
	defer func() { <-done }()
	defer end()
	collected(t, root, func(s telemetry.State) bool { return len(s.Prompts) == 1 })
	damaged := filepath.Join(root, "telemetry", "p-"+strings.Repeat("A", 26)+".words")
	require.NoError(t, os.WriteFile(damaged, []byte("of nobody knows whom"), 0o600))
	Forget(filepath.Join(t.TempDir(), "sha256-"+digest("8")))
	require.NoFileExists(t, damaged)
	state := collected(t, root, func(s telemetry.State) bool { return s.Live && len(s.Prompts) == 0 })
	require.EqualValues(t, 1, state.Models[0].Totals["ollama_kv_prompts_total"])
}

// ask sends a request to the mux that Ollama serves with.
func ask(t *testing.T, method, host string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://"+host+"/metrics", nil)
	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return w.Code, string(body)
}

func tierAt(root string) func(context.Context) (telemetry.State, error) {
	return func(context.Context) (telemetry.State, error) {
		return telemetry.State{Tiers: []telemetry.Tier{{Name: "local", Root: root}}}, nil
	}
}

// Only a server that was told to shows metrics; each server that starts in a process shows its
// own, and none does after its end.
func TestExposeMetrics(t *testing.T) {
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1"})
	t.Setenv("OLLAMA_METRICS", "")
	exposeMetrics(tierAt("/off"))()
	code, _ := ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code)

	t.Setenv("OLLAMA_METRICS", "yes")
	exposeMetrics(tierAt("/off"))()
	code, _ = ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code, "neither true nor false")

	t.Setenv("OLLAMA_METRICS", "1")
	stop := exposeMetrics(tierAt("/first"))
	code, body := ask(t, "GET", "localhost:11434")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `root="/first"`)
	code, body = ask(t, "HEAD", "localhost:11434")
	require.Equal(t, http.StatusOK, code)
	require.NotEmpty(t, body, "net/http cuts it, not the handler")
	code, _ = ask(t, "GET", "evil.example:11434")
	require.Equal(t, http.StatusForbidden, code)

	second := exposeMetrics(tierAt("/second"))
	_, body = ask(t, "GET", "localhost")
	require.Contains(t, body, `root="/second"`)
	stop()
	_, body = ask(t, "GET", "localhost")
	require.Contains(t, body, `root="/second"`, "the end of the first server is not that of the second")
	second()
	code, _ = ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code)
}
