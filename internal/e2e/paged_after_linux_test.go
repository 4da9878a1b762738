package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// after are the variables of a server whose K/V is in tensors up to a number of tokens.
func after(t *testing.T, tokens int, pages float64) []string {
	t.Helper()
	return append(paged(t, 64, pages), fmt.Sprintf("OLLAMA_PAGED_AFTER=%d", tokens), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_DEBUG=1")
}

var (
	outgrew = regexp.MustCompile(`kv pager: the K/V outgrew its tensors.* tokens=(\d+)`)
	// loadingSlot is upstream's line of the tokens of a prompt that a slot holds.
	loadingSlot = regexp.MustCompile(`msg="loading cache slot" .*used=(\d+)`)
)

// What fits is stock's own: the same bits. A conversation that outgrows its tensors goes on in pages, in
// the middle of an answer, and none of it is computed again; what follows agrees with stock.
func TestPagedAfterTensors(t *testing.T) {
	stock := startPlain(t, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1")
	for _, pages := range []float64{plenty, 1} {
		t.Run(fmt.Sprint(pages), func(t *testing.T) {
			s := startPlain(t, after(t, 1024, pages)...)
			short := prompt(t, 600, 81)
			requireSame(t, stock.ask(short, 40), s.ask(short, 40), "in tensors")
			require.Empty(t, outgrew.FindString(s.Logs()))

			long := prompt(t, 1000, 82)
			want, got := stock.ask(long, 60), s.ask(long, 60)
			require.Regexp(t, outgrew, s.Logs())
			requireClose(t, want, got, stockError["f16"])
			require.Equal(t, want.Logprobs[:10], got.Logprobs[:10], "until then it is in tensors")

			next := long + got.Text + prompt(t, 100, 83)
			want, got = stock.ask(next, 40), s.ask(next, 40)
			lines := loadingSlot.FindAllStringSubmatch(s.Logs(), -1)
			used, err := strconv.Atoi(lines[len(lines)-1][1])
			require.NoError(t, err)
			require.Greater(t, used, 1000, "tokens that were not computed again")
			requireClose(t, want, got, stockError["f16"])
		})
	}
}

// A stored conversation that has no room in tensors is restored into pages, also while others compute,
// and what goes on from it has the bits of a server that was never killed.
func TestPagedAfterTensorsWithTiering(t *testing.T) {
	s := start(t, append(after(t, 1024, plenty), "OLLAMA_NUM_PARALLEL=2")...)
	text, other := prompt(t, 1500, 84), prompt(t, 400, 85)
	s.ask(text, 33)
	s.unload()
	s.ask(other, 4) // tensors, until the next prompt comes
	held := s.ask(text, 33)
	require.Equal(t, 1499, held.restored)
	s.crash()
	mark := s.LogMark()
	together := s.askTogether(requestFor(other, 200), requestFor(text, 33))
	require.Regexp(t, outgrew, s.Logs()[mark:])
	require.Regexp(t, `msg="kv tier: restored" slot=\d tokens=1499`, s.Logs()[mark:])
	requireClose(t, held, together[1], 0.05)
	s.crash()
	got := s.ask(text, 33)
	require.Equal(t, 1499, got.restored)
	requireSame(t, held, got, "after kill -9")
}

// Slots that share tensors outgrow them together, whichever of them is longest, and each answer is what
// it is alone; also on a GPU, which still computes when the next batch is built.
func TestPagedAfterTensorsInParallel(t *testing.T) {
	for where, startAt := range map[string]func(t *testing.T, env ...string) *server{
		"CPU": startPlain,
		"GPU": func(t *testing.T, env ...string) *server {
			return startOnDevice(t, 1, append(env, "FAKEGPU_PAGED=1")...)
		},
	} {
		t.Run(where, func(t *testing.T) {
			s := startAt(t, append(after(t, 1024, 4), "OLLAMA_NUM_PARALLEL=4")...)
			stock := startAt(t, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1")
			history := prompt(t, 200, 86)
			var texts []string
			for i := range 6 {
				texts = append(texts, history+prompt(t, 100+30*i, int64(87+i)))
			}
			for i, got := range s.askTogether(requestsFor(texts, 120)...) {
				requireClose(t, stock.ask(texts[i], 120), got, 0.05)
			}
			require.Regexp(t, outgrew, s.Logs())
		})
	}
}

// Models whose caches are several outgrow the tensors of all of them between two batches: with a window and
// without, and both without, as llama4's chunks and a context within the window are.
func TestPagedAfterTensorsOfModels(t *testing.T) {
	limit := func(r *ollamatest.Request) { r.Options["num_ctx"] = 512 }
	for name, shape := range map[string]testmodel.Shape{
		"gemma3":           {Arch: "gemma3", Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 3},
		"gemma3 in window": {Arch: "gemma3", Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 1024, Seed: 3},
		"gemma3n":          {Arch: "gemma3n", Window: 64, Seed: 3},
		"gptoss":           {Arch: "gptoss", Layers: 4, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 3},
		"llama4":           {Arch: "llama4", Window: 64, Seed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			m := newPagedModel(t, shape)
			byName := func(r *ollamatest.Request) { r.Model = shape.Arch }
			serve := func(slots int, env ...string) *server {
				s := startPlain(t, append(append(env, m.env...), fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots))...)
				s.create(shape.Arch, m.gguf)
				return s
			}
			stock, s := serve(1), serve(2, after(t, 768, plenty)...)
			texts := []string{m.prompt(t, 420, 400), m.prompt(t, 430, 401)}
			want := []answer{stock.ask(texts[0], 60, byName, limit), stock.ask(texts[1], 60, byName, limit)}
			requireClose(t, want[0], s.ask(texts[0], 60, byName, limit), 0.05)
			require.Empty(t, outgrew.FindString(s.Logs()))
			for i, got := range s.askTogether(requestsFor(texts, 60, byName, limit)...) {
				requireClose(t, want[i], got, 0.05)
			}
			require.Regexp(t, outgrew, s.Logs())
		})
	}
}

// A shift in tensors, and one in pages after them.
func TestPagedAfterTensorsShift(t *testing.T) {
	limit := func(r *ollamatest.Request) { r.Options["num_ctx"] = 512 }
	text := prompt(t, 500, 94)
	want := start(t, "OLLAMA_FLASH_ATTENTION=1").ask(text, 120, limit)
	for slots, tokens := range map[int]int{1: 256, 2: 768} {
		got := start(t, append(after(t, tokens, 3), fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots))...).ask(text, 120, limit)
		require.Len(t, got.Logprobs, 120, "generation went on past the context")
		requireClose(t, want, got, 0.05)
	}
}

// On a GPU with room for all K/V paged attention changes nothing, to the bit. On one with less K/V has
// tensors for as many tokens as fit; a conversation that outgrows them goes on in pages.
func TestPagedAfterTheMemoryOfAGPU(t *testing.T) {
	const (
		context = 16384            // 24 MiB of K/V
		beside  = (457 + 24) << 20 // what Ollama leaves free, and the model with its graph
	)
	long := func(r *ollamatest.Request) { r.Options["num_ctx"] = context }
	short, text := prompt(t, 600, 95), prompt(t, 4000, 96)
	stock := startOnDevice(t, 1, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1")
	wantShort, want := stock.ask(short, 20, long), stock.ask(text, 60, long)

	large := startOnDevice(t, 1, append(paged(t, 64, plenty), "OLLAMA_FLASH_ATTENTION=1", "FAKEGPU_PAGED=1")...)
	requireSame(t, wantShort, large.ask(short, 20, long), "with room for all")
	requireSame(t, want, large.ask(text, 60, long), "with room for all")
	require.Contains(t, large.Logs(), "kv pager: not needed")

	small := startOnDevice(t, 1, append(paged(t, 64, plenty), "OLLAMA_FLASH_ATTENTION=1", "FAKEGPU_PAGED=1", fmt.Sprint("FAKEGPU_MEMORY=", beside+3<<20))...)
	requireSame(t, wantShort, small.ask(short, 20, long), "in tensors")
	small.requireOnDevice(false)
	tokens, err := strconv.Atoi(regexp.MustCompile(`tensor_tokens=(\d+)`).FindStringSubmatch(small.Logs())[1])
	require.NoError(t, err)
	require.InDelta(t, 2200, tokens, 1500, "tokens in tensors")
	require.Empty(t, outgrew.FindString(small.Logs()))
	requireClose(t, want, small.ask(text, 60, long), stockError["f16"])
	require.Regexp(t, outgrew, small.Logs())
}

// What the tensors took goes back to the system: behind the move a runner holds what one does that began in
// pages.
func TestPagedAfterTensorsFreesThem(t *testing.T) {
	m := newPagedModel(t, testmodel.Shape{Arch: "qwen3", Layers: 24, Embed: 128, Heads: 4, KVHeads: 4, HeadDim: 128, Seed: 3})
	limit := func(r *ollamatest.Request) { r.Model, r.Options["num_ctx"] = m.shape.Arch, 4096 }
	var held [2]int64
	for i, tokens := range []int{0, 2048} {
		s := startPlain(t, append(append(after(t, tokens, 4), m.env...), "OLLAMA_NUM_PARALLEL=1")...)
		s.create(m.shape.Arch, m.gguf)
		s.ask(m.prompt(t, 2000, 96), 4, limit)
		require.Empty(t, outgrew.FindString(s.Logs()))
		s.ask(m.prompt(t, 2200, 97), 4, limit)
		require.Equal(t, tokens > 0, outgrew.MatchString(s.Logs()))
		held[i] = resident(t, s)
	}
	t.Logf("in pages from the start %.1f MB, outgrown %.1f MB", float64(held[0])/1e6, float64(held[1])/1e6)
	require.Less(t, held[1], held[0]+50e6) // of 100 MB
}
