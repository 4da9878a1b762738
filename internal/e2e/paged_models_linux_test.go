package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Paged attention in other models than the usual one of tests: paging must equal stock
// attention with windows, sinks and two caches in one.

// Gemma 3 keeps layers with a window, 5 of 6, in a separate cache that drops rows outside
// every window.
func TestPagedSlidingWindows(t *testing.T) {
	testPagedModel(t, testmodel.Shape{Arch: "gemma3", Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 3})
}

// gpt-oss has a sink in each head, and windows in every other layer, whose cache drops rows
// more than 4,096 tokens back. A long prompt is longer than that.
func TestPagedSinks(t *testing.T) {
	m := testPagedModel(t, testmodel.Shape{Arch: "gptoss", Layers: 4, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 3})
	t.Run("long", m.long)
}

// Llama runs on the native engine only on request.
func TestPagedLlama(t *testing.T) {
	testPagedModel(t, testmodel.Shape{Arch: "llama", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Seed: 3}, "OLLAMA_NEW_ENGINE=1")
}

// The last layers of Gemma 3n have no rows and attend to those of other layers.
func TestPagedSharedRows(t *testing.T) {
	testPagedModel(t, testmodel.Shape{Arch: "gemma3n", Window: 64, Seed: 3})
}

// Layers of Llama 4 attend to their chunk of 64 tokens; every fourth layer attends to all
// tokens and has no rotary positions. The engine's shift rotates the keys of those layers as
// well, so that no right result of a shift exists for comparison.
func TestPagedChunks(t *testing.T) {
	newPagedModel(t, testmodel.Shape{Arch: "llama4", Window: 64, Seed: 3}).converse(t)
}

// modelPageCells is less than a window, so that a window spans several pages and ends within
// one.
const modelPageCells = 32

// modelLengths are lengths of prompts below, at and well past a window of 64 tokens; the
// last one takes several batches.
var modelLengths = []int{30, 63, 64, 65, 66, 300, 1500}

// pagedModel is a model and the settings of its servers.
type pagedModel struct {
	shape testmodel.Shape
	gguf  string
	env   []string
}

func testPagedModel(t *testing.T, shape testmodel.Shape, env ...string) pagedModel {
	m := newPagedModel(t, shape, env...)
	m.converse(t)
	t.Run("shift", m.shift)
	return m
}

func newPagedModel(t *testing.T, shape testmodel.Shape, env ...string) pagedModel {
	m := pagedModel{
		shape: shape, gguf: filepath.Join(t.TempDir(), shape.Arch+".gguf"),
		env: append([]string{"OLLAMA_FLASH_ATTENTION=1"}, env...),
	}
	if shared.gguf != "" { // without Ollama, starting the first server skips the test
		require.NoError(t, testmodel.Write(m.gguf, shape))
	}
	return m
}

func (m pagedModel) converse(t *testing.T) {
	for _, slots := range []int{1, 2} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) { m.conversations(t, slots) })
	}
}

// modelServers are servers whose answers must agree: with stock attention, with all pages in
// memory, and with a budget of very few pages.
type modelServers struct {
	stock, plenty, few *server
	spill              string // spill directory of few
}

func (m pagedModel) start(t *testing.T, slots int) modelServers {
	t.Helper()
	parallel := fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots)
	one := func(env []string) *server {
		s := startPlain(t, append(append(env, m.env...), parallel)...)
		s.create(m.shape.Arch, m.gguf)
		return s
	}
	// paged counts pages of the usual model
	pages := float64(m.shape.KVBytesPerToken()) / bytesPerToken
	few := paged(t, modelPageCells, pages)
	for _, setting := range few {
		if dir, ok := strings.CutPrefix(setting, "OLLAMA_PAGED_SPILL_DIR="); ok {
			return modelServers{one(nil), one(paged(t, modelPageCells, plenty*pages)), one(few), dir}
		}
	}
	require.FailNow(t, "no spill directory in the settings")
	return modelServers{}
}

// ask asks all three servers and compares the answers.
func (m pagedModel) ask(t *testing.T, s modelServers, what, text string, tokens int, change ...func(*ollamatest.Request)) {
	t.Helper()
	change = append(change, func(r *ollamatest.Request) { r.Model = m.shape.Arch })
	all, few := s.plenty.ask(text, tokens, change...), s.few.ask(text, tokens, change...)
	require.Len(t, all.Logprobs, tokens, what)
	requireSame(t, all, few, what)
	requireClose(t, m.askStock(t, s, all, text, tokens, change...), all, stockError["f16"])
}

// askStock asks the stock server, up to three times if its answer differs: past the context,
// stock tokens are sometimes arbitrary, or the end token (see comparable).
func (m pagedModel) askStock(t *testing.T, s modelServers, paged answer, text string, tokens int, change ...func(*ollamatest.Request)) answer {
	t.Helper()
	stock := s.stock.ask(text, tokens, change...)
	for range 2 {
		_, err := soak.Within(stock.Logprobs, paged.Logprobs, stockError["f16"])
		if err == nil && len(stock.Logprobs) == tokens {
			break
		}
		require.NoError(t, s.stock.Unload(s.stock.context(), m.shape.Arch))
		stock = s.stock.ask(text, tokens, change...)
	}
	require.Len(t, stock.Logprobs, tokens)
	return stock
}

func (m pagedModel) prompt(t *testing.T, tokens int, seed int64) string {
	t.Helper()
	text, err := testmodel.Prompt(m.shape, tokens, seed)
	require.NoError(t, err)
	return text
}

// conversations runs prompts of all lengths: each prompt; the same again in the same slot,
// which is rewound or, without the window's rows, computed again; a second turn; and the
// first prompt again.
func (m pagedModel) conversations(t *testing.T, slots int) {
	s := m.start(t, slots)
	for i, length := range modelLengths {
		text := m.prompt(t, length, int64(100+i))
		m.ask(t, s, fmt.Sprintf("%d tokens", length), text, 33)
		m.ask(t, s, fmt.Sprintf("%d tokens again", length), text, 33)
		m.ask(t, s, fmt.Sprintf("%d tokens and more", length), text+m.prompt(t, 80, int64(200+i)), 9)
		m.ask(t, s, fmt.Sprintf("%d tokens a third time", length), text, 9)
	}
	require.Contains(t, s.plenty.Logs(), "kv pager: on")
	require.Contains(t, s.few.Logs(), "kv pager: on")
	require.NotContains(t, s.stock.Logs(), "kv pager: on")
	require.NotEmpty(t, spillFiles(t, s.few, s.spill), "the small budget was enough")
	if slots > 1 {
		m.atOnce(t, s, slots)
	}
}

// atOnce runs slots that share batches. The tokens in a batch depend on timing, so answers
// equal those of a single slot up to rounding.
func (m pagedModel) atOnce(t *testing.T, s modelServers, slots int) {
	texts, alone := make([]string, slots), make([]answer, slots)
	byName := func(r *ollamatest.Request) { r.Model = m.shape.Arch }
	for i := range texts {
		texts[i] = m.prompt(t, 700+i, int64(300+i))
		alone[i] = s.stock.ask(texts[i], 40, byName)
	}
	for _, paged := range []*server{s.plenty, s.few} {
		for i, got := range paged.askTogether(requestsFor(texts, 40, byName)...) {
			requireClose(t, alone[i], got, stockError["f16"])
		}
	}
}

// shift runs answers that go past a small context, through several shifts.
func (m pagedModel) shift(t *testing.T) {
	s := m.start(t, 1)
	limit := func(r *ollamatest.Request) { r.Options["num_ctx"] = 256 }
	for i, length := range []int{40, 240} {
		text := m.prompt(t, length, int64(400+i))
		m.ask(t, s, fmt.Sprintf("shift after %d tokens", length), text, 330, limit)
		m.ask(t, s, fmt.Sprintf("%d tokens again", length), text, 20, limit)
	}
}

// long runs a prompt past the rows that a cache of windows keeps, and then goes back to
// positions without rows.
func (m pagedModel) long(t *testing.T) {
	s := m.start(t, 1)
	room := func(r *ollamatest.Request) { r.Options["num_ctx"] = 6144 }
	text := m.prompt(t, 5000, 500)
	m.ask(t, s, "5000 tokens", text, 20, room)
	m.ask(t, s, "5000 tokens again", text, 20, room)
	m.ask(t, s, "its first 300", m.prompt(t, 300, 500), 9, room)
}

// K of pages outside memory is rotated in place, or when the page is next needed.
func TestShiftedTextWithPagedAttention(t *testing.T) {
	env := paged(t, 64, plenty)
	env = append(env, "OLLAMA_KV_TIER_PAGE_TOKENS=64", "OLLAMA_KV_TIER_REUSE=shifted", "OLLAMA_NEW_ENGINE=1", "OLLAMA_MAX_LOADED_MODELS=1")
	s := modelServer{start(t, env...)}
	plain := modelServer{startOptions(t, "", ollamatest.Options{Env: []string{"OLLAMA_NEW_ENGINE=1", "OLLAMA_NUM_PARALLEL=1"}})}
	requireMovedAsComputed(t, plain.loadListening(t, "qwen3", 0), s.loadListening(t, "qwen3", 0), 2*differ)
}

// Of models with recurrent layers the attention layers are paged. They cannot shift.
func TestPagedHybrids(t *testing.T) {
	for _, arch := range []string{"lfm2", "qwen3next"} {
		t.Run(arch, func(t *testing.T) {
			m := newPagedModel(t, testmodel.Shape{Arch: arch, Seed: 3})
			m.converse(t)
			t.Run("tiering", m.tiered)
		})
	}
}

// tiered restores rows into pages, and what the model keeps beside them, after kill -9.
func (m pagedModel) tiered(t *testing.T) {
	byName := func(r *ollamatest.Request) { r.Model = m.shape.Arch }
	text := m.prompt(t, 1500, 300)
	for _, tokens := range []int{0, 1024} {
		s := start(t, append(append(after(t, tokens, plenty), fmt.Sprintf("OLLAMA_PAGED_CHUNK_SIZE=%d", modelPageCells)), m.env...)...)
		s.create(m.shape.Arch, m.gguf)
		held := s.ask(text, 33, byName)
		require.NoError(t, s.Unload(s.context(), m.shape.Arch))
		s.crash()
		got := s.ask(text, 33, byName)
		require.GreaterOrEqual(t, got.restored, 1024) // states are stored where pages end
		requireClose(t, held, got, stockError["f16"])
		require.Contains(t, s.Logs(), "kv pager: on")
	}
}
