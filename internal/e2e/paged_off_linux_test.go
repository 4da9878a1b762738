package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/telemetry"
)

// Models that cannot be paged: OLLAMA_PAGED_ATTN changes nothing for them, and the reason is told.

// unpageable are such models, the settings of their servers, and a part of the reason.
var unpageable = []struct {
	name   string
	shape  testmodel.Shape
	env    []string
	reason string
}{
	{"heads of 40", testmodel.Shape{Arch: "qwen3", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 40, Seed: 1}, nil, "heads of a multiple of 16 elements; the model's have 40"},
	{"heads of 40, without flash attention", testmodel.Shape{Arch: "llama", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 40, Seed: 1}, []string{"OLLAMA_NEW_ENGINE=1"}, "heads of a multiple of 16 elements; the model's have 40"},
	{"flash attention off", testmodel.Shape{Arch: "qwen3", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Seed: 1}, []string{"OLLAMA_FLASH_ATTENTION=0"}, "OLLAMA_FLASH_ATTENTION turns flash attention off"},
}

// TestPagedOffAnswersAsStock: such a model is loaded and answers to the last bit as without
// OLLAMA_PAGED_ATTN, with one warning. Where flash attention is not the model's default it stays off.
func TestPagedOffAnswersAsStock(t *testing.T) {
	for _, c := range unpageable {
		t.Run(c.name, func(t *testing.T) {
			on := paged(t, 64, plenty)
			gguf := filepath.Join(t.TempDir(), "model.gguf")
			require.NoError(t, testmodel.Write(gguf, c.shape))
			text, err := testmodel.Prompt(c.shape, 300, 5)
			require.NoError(t, err)
			byName := func(r *ollamatest.Request) { r.Model = "m" }
			var answers [2][]answer
			for i, env := range [][]string{{"OLLAMA_NUM_PARALLEL=1"}, on} {
				s := startPlain(t, append(env, c.env...)...)
				s.create("m", gguf)
				answers[i] = []answer{s.ask(text, 20, byName), s.ask(text+text, 20, byName)}
				requireUnpaged(t, s, len(env) > 1, c.reason)
			}
			for i := range answers[0] {
				requireSame(t, answers[0][i], answers[1][i], fmt.Sprintf("request %d", i))
			}
		})
	}
}

// requireUnpaged fails unless the log gives the reason, once and with a remedy.
func requireUnpaged(t *testing.T, s *server, asked bool, reason string) {
	t.Helper()
	var warnings []string
	for line := range strings.Lines(s.Logs()) {
		if strings.Contains(line, "kv pager: ") || asked && strings.Contains(line, "level=WARN") && strings.Contains(line, "flash attention") {
			warnings = append(warnings, line)
		}
	}
	if !asked {
		require.Empty(t, warnings)
		return
	}
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], `level=WARN source=paged.go`)
	require.Contains(t, warnings[0], "kv pager: off for this model")
	require.Contains(t, warnings[0], reason)
	require.Regexp(t, `remedy="[a-zA-Z]`, warnings[0])
}

// TestPagedOffIsShown: ps has the reason, too.
func TestPagedOffIsShown(t *testing.T) {
	s := start(t, paged(t, 64, plenty)...)
	k := buildTool(t, s.root)
	gguf := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, testmodel.Write(gguf, unpageable[0].shape))
	s.create("m", gguf)
	text, err := testmodel.Prompt(unpageable[0].shape, 300, 5)
	require.NoError(t, err)
	s.ask(text, 4, func(r *ollamatest.Request) { r.Model = "m" })
	s.told(1)
	var ps struct {
		Processes []struct{ Unpaged *telemetry.Unpaged }
	}
	require.NoError(t, json.Unmarshal([]byte(k.run(0, "ps", "--json")), &ps))
	require.Len(t, ps.Processes, 1)
	require.NotNil(t, ps.Processes[0].Unpaged)
	require.Contains(t, ps.Processes[0].Unpaged.Reason, unpageable[0].reason)
	require.Contains(t, k.run(0, "ps"), "paged attention is off: ")
}

// TestPagedOffOnAGPUWithoutIt: a GPU whose library has no paged attention computes as without the
// variable.
func TestPagedOffOnAGPUWithoutIt(t *testing.T) {
	emulated(t)
	var answers [2]answer
	for i, env := range [][]string{{"OLLAMA_NUM_PARALLEL=1"}, paged(t, 64, plenty)} {
		s := startOnDevice(t, 1, env...)
		answers[i] = s.ask(prompt(t, 300, 5), 20)
		s.requireOnDevice(false)
		requireUnpaged(t, s, i == 1, "library in use has no paged attention")
		models, err := s.PS(s.context())
		require.NoError(t, err)
		require.Len(t, models, 1)
		require.Equal(t, models[0].Size, models[0].SizeVRAM, "the whole model is on the device")
	}
	requireSame(t, answers[0], answers[1], "with the variable")
}

// TestPagedIsCounted: the log says how a model is paged, once. HOT counts pages in memory, and not those
// on the spill: three of ten. The pager's counters are among the metrics.
func TestPagedIsCounted(t *testing.T) {
	s := start(t, append(paged(t, 64, 3), "OLLAMA_KV_TIER_PAGE_TOKENS=64", "OLLAMA_METRICS=1")...)
	s.ask(prompt(t, 640, 7), 1)
	require.Regexp(t, fmt.Sprintf(`kv pager: on" layers=3 kv_heads=2x64/64 type=f16 page_tokens=64 page_bytes=%d host_bytes=\d+ host_tokens=192 spill=/`, 64*bytesPerToken/3), s.Logs())
	require.Equal(t, 1, strings.Count(s.Logs(), "kv pager: "))
	state := s.told(1)
	require.Len(t, state.Processes, 1)
	require.Len(t, state.Processes[0].Slots, 1)
	slot := state.Processes[0].Slots[0]
	require.GreaterOrEqual(t, slot.Tokens, 640, "and the answer's token, once it is counted")
	require.Positive(t, slot.Hot)
	require.LessOrEqual(t, slot.Hot, 3)
	require.LessOrEqual(t, slot.Bytes, int64(3*64*bytesPerToken))
	gauges := state.Processes[0].Gauges
	require.LessOrEqual(t, gauges["ollama_kv_paged_memory_pages"], 9.0)
	require.GreaterOrEqual(t, gauges["ollama_kv_paged_spill_bytes"], 7.0*64*bytesPerToken)
	metrics := s.scrape()
	for _, name := range []string{"hits", "misses", "prefetches", "evictions", "spilled_bytes", "streamed_bytes"} {
		require.Positive(t, metrics["ollama_kv_paged_"+name+"_total"], name)
	}
	require.NotContains(t, gauges, "ollama_kv_paged_video_pages")
}
