package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// K/V of a token of the test model: 3 layers, K and V, 2 heads of 64, f16.
const bytesPerToken = 3 * 2 * 2 * 64 * 2

// paged are the variables that turn paged attention on, with pages of pageCells tokens and a
// budget of `pages` pages of all layers.
func paged(t *testing.T, pageCells int, pages float64) []string {
	t.Helper()
	if leftOut, err := withoutSet("paged"); err != nil || leftOut {
		require.NoError(t, err)
		t.Skip("this Ollama was built without the patches of paged attention")
	}
	return []string{
		"OLLAMA_PAGED_ATTN=1",
		fmt.Sprintf("OLLAMA_PAGED_CHUNK_SIZE=%d", pageCells),
		fmt.Sprintf("OLLAMA_PAGED_HOST_GB=%.6f", pages*float64(pageCells)*bytesPerToken/1e9),
		"OLLAMA_PAGED_SPILL_DIR=" + diskDir(t),
		"OLLAMA_NUM_PARALLEL=1",
	}
}

// withoutSet reports whether the Ollama to test was built without a set of patches. Without an
// Ollama the start of a server skips the test.
func withoutSet(set string) (bool, error) {
	version, err := builtVersion()
	return slices.Contains(strings.Split(version, ".without-")[1:], set), err
}

var builtVersion = sync.OnceValues(func() (string, error) {
	binary, err := ollamatest.FindBinary()
	if err != nil {
		return "", nil
	}
	return ollamasrc.BinaryVersion(context.Background(), binary)
})

// plenty pages hold all rows of any test.
const plenty = 1000

// diskDir is a directory for one test on a filesystem that is not in memory.
func diskDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	if fs.Type != unix.TMPFS_MAGIC {
		return dir
	}
	dir, err := os.MkdirTemp(".", "spill-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	dir, err = filepath.Abs(dir)
	require.NoError(t, err)
	return dir
}

// stockError is the error of stock attention's log probabilities, by type of K and V: stock
// attention rounds queries to 8 bits where K is quantized.
var stockError = map[string]float64{"f16": 0.02, "q8_0": 0.05, "q4_0": 0.2}

// Paging is exact attention: its answers agree with stock attention within the error of stock
// attention, for every type of K and V and any number of slots.
func TestPagedAgreesWithStock(t *testing.T) {
	types, numbers := []string{"f16", "q8_0", "q4_0"}, []int{1, 4}
	plays := matrix(t, len(types), len(numbers))
	for k, cacheType := range types {
		for n, slots := range numbers {
			if !plays(k, n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", cacheType, slots), func(t *testing.T) {
				env := []string{"OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=" + cacheType}
				text := prompt(t, 1500, 60)
				stock := startPlain(t, append(env, fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots))...).ask(text, 40)
				pages := startPlain(t, append(append(paged(t, 128, plenty), env...), fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots))...)
				got := pages.ask(text, 40)
				require.Contains(t, pages.Logs(), "kv pager: on")
				requireClose(t, stock, got, stockError[cacheType])
			})
		}
	}
}

// The budget does not change results: a budget of three pages gives the same bits as a
// budget for all pages, through a prompt, its answer, a branch and a second turn.
func TestPagedBitsDoNotDependOnTheBudget(t *testing.T) {
	small, large := startPlain(t, paged(t, 64, 1)...), startPlain(t, paged(t, 64, plenty)...)
	first := prompt(t, 1700, 61)
	for i, text := range []string{first, first, first + prompt(t, 100, 62), prompt(t, 900, 63), first + prompt(t, 70, 64)} {
		requireSame(t, large.ask(text, 33), small.ask(text, 33), fmt.Sprintf("request %d", i))
	}
}

// A shift rotates K in pages on disk: the answer goes on as without paging. Both servers have
// tiering on, because a stock one may compute the token after a full context wrongly (see comparable).
func TestPagedContextShift(t *testing.T) {
	limit := func(r *ollamatest.Request) { r.Options["num_ctx"] = 512 }
	text := prompt(t, 500, 65)
	want := start(t, "OLLAMA_FLASH_ATTENTION=1").ask(text, 120, limit)
	got := start(t, paged(t, 32, 3)...).ask(text, 120, limit)
	require.Len(t, got.Logprobs, 120, "generation went on past the context")
	requireClose(t, want, got, 0.05)
}

// Slots fork, end and begin in parallel under a budget for a small part of their rows.
func TestPagedParallelSlots(t *testing.T) {
	s := startPlain(t, append(paged(t, 64, 4), "OLLAMA_NUM_PARALLEL=4")...)
	history := prompt(t, 800, 66)
	texts := make([]string, 6)
	for i := range texts {
		texts[i] = history + prompt(t, 40+i, int64(70+i))
	}
	alone := make([]answer, len(texts))
	for i, text := range texts {
		alone[i] = s.ask(text, 20)
	}
	for i, got := range s.askTogether(requestsFor(texts, 20)...) {
		requireClose(t, alone[i], got, 0.05)
	}
}

// Restored pages give the same bits as rows that were never evicted, after kill -9, and with
// a budget smaller than the pages.
func TestPagedTogetherWithTiering(t *testing.T) {
	for _, pages := range []float64{plenty, 1} {
		t.Run(fmt.Sprint(pages), func(t *testing.T) {
			s := start(t, paged(t, 64, pages)...)
			text := prompt(t, 1500, 67)
			s.ask(text, 33)
			s.unload() // unloading waits until all pages are stored
			held := s.ask(text, 33)
			s.crash()
			got := s.ask(text, 33)
			require.Equal(t, 1499, got.restored)
			requireSame(t, held, got, "after kill -9")
			s.ask(prompt(t, 700, 68), 4)
			got = s.ask(text, 33)
			require.Positive(t, got.restored)
			requireSame(t, held, got, "after another conversation")
		})
	}
}

// A new token that attends to chosen cells attends to the same ones with any pages in memory, and
// after kill -9; and what it computed so is not found without choices.
func TestPagedSelect(t *testing.T) {
	const budget = 512
	text := prompt(t, 1500, 71)
	root := filepath.Join(t.TempDir(), "pages")
	var held answer
	for i, pages := range []float64{plenty, 1} {
		s := startIn(t, filepath.Join(root, fmt.Sprint(i)), append(paged(t, 64, pages), fmt.Sprintf("OLLAMA_PAGED_SELECT=%d", budget))...)
		s.ask(text, 33)
		s.unload()
		got := s.ask(text, 100)
		if i == 0 {
			held = got
		}
		requireSame(t, held, got, fmt.Sprintf("with %v pages in memory", pages))
		requireSame(t, held, s.ask(text, 100), "in the slot")
		s.crash()
		got = s.ask(text, 100)
		require.Equal(t, 1499, got.restored)
		requireSame(t, held, got, "after kill -9")
		totals := s.told(4).Models[0].Totals
		seen, chosen := totals["ollama_kv_paged_seen_blocks_total"], totals["ollama_kv_paged_chosen_blocks_total"]
		require.Positive(t, chosen)
		require.InDelta(t, float64(budget)/1550, chosen/seen, 0.1)
		require.NoError(t, s.Stop())
	}
	s := startIn(t, filepath.Join(root, "0"), paged(t, 64, plenty)...)
	require.Zero(t, s.ask(text, 4).restored)
	exact := s.ask(text, 100)
	require.Equal(t, exact.Logprobs[0], held.Logprobs[0], "the prompt is computed without choices")
	require.NotEqual(t, exact.Logprobs[1:], held.Logprobs[1:])
}

// A time that no token meets leaves the fewest blocks, and one that all of them meet leaves all: then nothing is
// chosen any more.
func TestPagedSelectByTime(t *testing.T) {
	const layers, blocks, tokens = 24, 3000 / 64, 100
	m := newPagedModel(t, testmodel.Shape{Arch: "qwen3", Layers: layers, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 128, Seed: 3})
	text := m.prompt(t, 3000, 72)
	ask := func(env ...string) (got answer, seen, chosen float64) {
		s := start(t, append(append(paged(t, 64, plenty), m.env...), env...)...)
		s.create(m.shape.Arch, m.gguf)
		got = s.ask(text, tokens, func(r *ollamatest.Request) { r.Model, r.Options["num_ctx"] = m.shape.Arch, 4096 })
		require.NoError(t, s.Stop()) // with the last report
		totals := s.told(1).Models[0].Totals
		return got, totals["ollama_kv_paged_seen_blocks_total"], totals["ollama_kv_paged_chosen_blocks_total"]
	}
	exact, seen, _ := ask()
	require.Zero(t, seen)
	_, seen, _ = ask("OLLAMA_PAGED_SELECT=1m")
	require.Positive(t, seen)
	require.Less(t, seen, float64(layers*(blocks+4)*tokens/4))
	few, seen, chosen := ask("OLLAMA_PAGED_SELECT=1ms")
	require.Greater(t, seen, float64(layers*blocks*tokens*9/10))
	require.Less(t, chosen/seen, 0.3)
	require.Equal(t, exact.Logprobs[0], few.Logprobs[0], "the prompt is computed without choices")
	require.NotEqual(t, exact.Logprobs[1:], few.Logprobs[1:])
}

// Answers that grew together share pages of cells, and have cells of their own after a restore. They
// attend to the same tokens nevertheless.
func TestPagedSelectTogether(t *testing.T) {
	s := start(t, append(paged(t, 32, plenty), "OLLAMA_NUM_PARALLEL=3", "OLLAMA_PAGED_SELECT=256")...)
	var texts []string
	for seed := range int64(3) {
		texts = append(texts, prompt(t, 500, 80+seed))
	}
	for i, got := range s.askTogether(requestsFor(texts, 200)...) {
		texts[i] += got.Text
	}
	var held []answer
	for _, text := range texts {
		s.ask(text, 2)
		held = append(held, s.ask(text, 20))
	}
	s.unload()
	s.crash()
	for i, text := range texts {
		got := s.ask(text, 20)
		require.Positive(t, got.restored)
		requireClose(t, held[i], got, 0.05)
	}
}

// Stock attention does not use pages that paged attention computed.
func TestPagedIsAnotherIdentity(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := prompt(t, 600, 69)
	s := startIn(t, root, "OLLAMA_FLASH_ATTENTION=1")
	s.ask(text, 4)
	require.NoError(t, s.Stop())
	require.Zero(t, startIn(t, root, paged(t, 64, plenty)...).ask(text, 4).restored)
}

// Settings that cannot work are refused with an error when a model is loaded.
func TestPagedRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"chunk size":      {[]string{"OLLAMA_PAGED_CHUNK_SIZE=1000"}, `OLLAMA_PAGED_CHUNK_SIZE="1000" is not a power of two`},
		"budget":          {[]string{"OLLAMA_PAGED_HOST_GB=0.00001"}, "OLLAMA_PAGED_HOST_GB; raise it or lower OLLAMA_PAGED_CHUNK_SIZE"},
		"memory as disk":  {[]string{"OLLAMA_PAGED_SPILL_DIR=/dev/shm"}, "/dev/shm"},
		"spill directory": {[]string{"OLLAMA_PAGED_SPILL_DIR=/proc/nowhere"}, "OLLAMA_PAGED_SPILL_DIR"},
		"neither 1 nor 0": {[]string{"OLLAMA_PAGED_ATTN=perhaps"}, `OLLAMA_PAGED_ATTN="perhaps"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := startPlain(t, append(paged(t, 64, plenty), test.env...)...)
			_, err := s.Generate(s.context(), requestFor(prompt(t, 20, 1), 2))
			require.ErrorContains(t, err, test.want)
		})
	}
}

// A prompt that does not fit on the disk is an error of its request. A disk that fills up
// while an answer grows ends the answer or shifts it. The server goes on in both cases.
func TestPagedFullDisk(t *testing.T) {
	room := func(pages float64) string {
		return fmt.Sprintf("OLLAMA_PAGED_SPILL_GB=%.6f", pages*64*bytesPerToken/1e9)
	}
	t.Run("at admission", func(t *testing.T) {
		s := startPlain(t, append(paged(t, 64, 2), room(4))...)
		_, err := s.Generate(s.context(), requestFor(prompt(t, 1800, 80), 2))
		require.ErrorContains(t, err, "spill")
		require.NotEmpty(t, s.ask(prompt(t, 100, 81), 4).Text, "a prompt that fits is served")
	})
	t.Run("at growth", func(t *testing.T) {
		s := startPlain(t, append(paged(t, 64, 2), room(9))...)
		small := func(r *ollamatest.Request) { r.Options["num_batch"] = 64 }
		got := s.ask(prompt(t, 500, 82), 400, small)
		require.Contains(t, s.Logs(), "kv room: no room for a longer context")
		require.NotEmpty(t, got.Text)
		require.NotEmpty(t, s.ask(prompt(t, 100, 83), 4, small).Text, "the next request is served")
	})
}

// The spill file has no name, so that no end of the process leaves it behind.
func TestPagedLeavesNoSpillBehind(t *testing.T) {
	env := paged(t, 64, 1)
	dir := strings.TrimPrefix(env[3], "OLLAMA_PAGED_SPILL_DIR=")
	s := startPlain(t, env...)
	s.ask(prompt(t, 1500, 84), 4)
	require.NotEmpty(t, spillFiles(t, s, dir), "the test can see an existing spill file")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "while it runs")
	s.crash()
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "after kill -9")
}

// spillFiles are the descriptors of a runner's unnamed files in a directory.
func spillFiles(t *testing.T, s *server, dir string) []string {
	t.Helper()
	runners, err := s.Runners()
	require.NoError(t, err)
	var found []string
	for _, pid := range runners {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		require.NoError(t, err)
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
				found = append(found, link)
			}
		}
	}
	return found
}

// A page that cannot be read back in the middle of an answer ends the runner with a clear
// error, and the server serves the next request with another runner.
func TestPagedReadErrorEndsTheRunner(t *testing.T) {
	env := paged(t, 64, 1)
	s := startPlain(t, env...)
	text := prompt(t, 1500, 85)
	want := s.ask(text, 8)

	s.failsToRead(text, env)
	requireSame(t, want, s.ask(text, 8), "another runner")
}

// failsToRead asks, and empties the spill file in the middle of the answer, which ends with an error.
func (s *server) failsToRead(text string, paged []string) {
	s.t.Helper()
	chunks := 0
	request := requestFor(text, 500)
	err := s.API().Generate(s.context(), &request, func(api.GenerateResponse) error {
		if chunks++; chunks == 3 {
			files := spillFiles(s.t, s, strings.TrimPrefix(paged[3], "OLLAMA_PAGED_SPILL_DIR="))
			require.NotEmpty(s.t, files)
			for _, link := range files {
				require.NoError(s.t, os.Truncate(link, 0))
			}
		}
		return nil
	})
	require.ErrorContains(s.t, err, "spill file")
	require.GreaterOrEqual(s.t, chunks, 3)
}

// A context far larger than the budget loads, and `ollama ps` shows the budget as its
// memory; stock attention would take memory for the whole context.
func TestPagedMemoryIsTheBudget(t *testing.T) {
	const longest = 128 << 10
	size := func(env ...string) int64 {
		s := startPlain(t, append(env, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1")...)
		s.ask(prompt(t, 10, 90), 2, func(r *ollamatest.Request) { r.Options["num_ctx"] = longest })
		models, err := s.PS(s.context())
		require.NoError(t, err)
		require.Len(t, models, 1)
		require.Zero(t, models[0].SizeVRAM)
		return models[0].Size
	}
	stock, small := size(), size(paged(t, 256, 8)...)
	require.Greater(t, stock, int64(longest*bytesPerToken))
	require.Less(t, small, stock-int64(longest-8*256)*bytesPerToken+16e6)
	require.Greater(t, small, int64(8*256*bytesPerToken), "the budget is part of the size")
}

// The recall model finds text at the start, in the middle and at the end of a context of
// many times the budget, while memory stays under the budget. KVTIER_RECALL_TOKENS sets
// another length than 32k.
func TestPagedRecall(t *testing.T) {
	tokens := 32 << 10
	if text := os.Getenv("KVTIER_RECALL_TOKENS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "KVTIER_RECALL_TOKENS")
		tokens = n
	}
	const (
		budget     = 4e6
		layers     = 4
		kvPerToken = layers * 2 * 2 * 64 * 2 // K and V, 2 heads of 64, f16: 2 kB
		// other memory of the runner for a prompt of 32k tokens: text, tokens in the
		// garbage-collected heap, the pager's data per cell
		slack = 48e6
	)
	gguf := filepath.Join(t.TempDir(), "recall.gguf")
	require.NoError(t, testmodel.WriteRecall(gguf, testmodel.Recall{Layers: layers, Heads: 2}))
	s := startOptions(t, "", ollamatest.Options{Env: append(paged(t, 256, plenty), fmt.Sprintf("OLLAMA_PAGED_HOST_GB=%.6f", budget/1e9))})
	s.create("recall", gguf)

	ask := func(q testmodel.RecallQuestion) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		result, err := s.Generate(ctx, ollamatest.Request{
			Model: "recall", Prompt: q.Prompt, Raw: true,
			Options:   ollamatest.Greedy(testmodel.RecallAnswerTokens, tokens),
			KeepAlive: ollamatest.KeepAlive(time.Hour),
		})
		require.NoError(t, err)
		require.Equal(t, q.Answer, result.Text, "%d tokens back", q.Distance)
	}
	short, err := testmodel.RecallPrompts(1, 1500, 700)
	require.NoError(t, err)
	ask(short[0]) // buffers for whole batches are allocated now
	before := resident(t, s)

	questions, err := testmodel.RecallPrompts(2, tokens-64, 10, tokens/2, tokens-200)
	require.NoError(t, err)
	for _, q := range questions {
		ask(q)
	}
	grown := resident(t, s) - before
	t.Logf("%d tokens, %.1f MB of K/V, budget %.1f MB: the runner grew by %.1f MB", tokens, float64(tokens*kvPerToken)/1e6, budget/1e6, float64(grown)/1e6)
	require.Less(t, grown, int64(budget)+max(slack, int64(tokens)*slack/(32<<10)))
}

var rssLine = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// resident is the anonymous memory of the runner, in bytes.
func resident(t *testing.T, s *server) int64 {
	t.Helper()
	runners, err := s.Runners()
	require.NoError(t, err)
	require.Len(t, runners, 1)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", runners[0]))
	require.NoError(t, err)
	match := rssLine.FindSubmatch(text)
	require.NotNil(t, match)
	kib, err := strconv.ParseInt(string(match[1]), 10, 64)
	require.NoError(t, err)
	return kib * 1024
}
