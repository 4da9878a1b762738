package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// ninePages are the variables for nine pages of spill and two pages in memory: 640 tokens
// for all slots.
func ninePages(t *testing.T, env ...string) []string {
	return append(append(paged(t, 64, 2), fmt.Sprintf("OLLAMA_PAGED_SPILL_GB=%.9f", 9.0*64*bytesPerToken/1e9)), env...)
}

const ninePagesTokens = (2 + 9 - 1) * 64

var limitedLine = regexp.MustCompile(`no room for a longer context, limiting it".* tokens=(\d+)`)

// An answer that outgrows a full spill shifts at the end of the room, each time. The next
// prompt has the whole room: the context does not shrink.
func TestPagedFullSpillKeepsTheContext(t *testing.T) {
	s := startPlain(t, ninePages(t)...)
	small := func(r *ollamatest.Request) { r.Options["num_batch"] = 64 }
	got := s.ask(prompt(t, 300, 91), 900, small)
	require.Len(t, got.Logprobs, 900, "the answer goes on after each shift")
	lines := limitedLine.FindAllStringSubmatch(s.Logs(), -1)
	require.NotEmpty(t, lines)
	for _, line := range lines {
		tokens, err := strconv.Atoi(line[1])
		require.NoError(t, err)
		require.Greater(t, tokens, ninePagesTokens-16)
	}
	got = s.ask(prompt(t, 600, 92), 4, small)
	require.Equal(t, 600, got.PromptEvalCount, "a later prompt is not truncated")

	_, err := s.Generate(s.context(), requestFor(prompt(t, 700, 93), 2))
	require.ErrorContains(t, err, "no room for the K/V of 700 tokens", "a prompt that can never fit has its own error")
}

// Prompts that fit one by one but not together wait for each other, and none ends the
// runner.
func TestPagedPromptsThatFitOneByOne(t *testing.T) {
	s := startPlain(t, ninePages(t, "OLLAMA_NUM_PARALLEL=3")...)
	small := func(r *ollamatest.Request) { r.Options["num_batch"] = 64 }
	s.ask(prompt(t, 10, 94), 1, small)
	before, err := s.Runners()
	require.NoError(t, err)

	var texts []string
	for i := range int64(6) {
		texts = append(texts, prompt(t, 300, 95+i))
	}
	for _, got := range s.askTogether(requestsFor(texts, 40, small)...) {
		require.Equal(t, 300, got.PromptEvalCount)
		require.Positive(t, got.EvalCount)
	}
	after, err := s.Runners()
	require.NoError(t, err)
	require.Equal(t, before, after, "the runner is the same")
}

// When a page cannot be read, pages sealed before are stored, and the runner does not wait
// for the failed batch.
func TestPagedReadErrorStoresWhatWasSealed(t *testing.T) {
	env := paged(t, 64, 1)
	s := start(t, env...)
	text := prompt(t, 1500, 85)
	s.failsToRead(text, env)
	require.NotContains(t, s.Logs(), "stopped before all pages were stored")
	require.Positive(t, s.ask(text, 8).restored, "tokens computed before are not computed again")
}

// Restored pages count for the room: slots that together lack room restore and shift beside
// each other, with a cache for windows and without.
func TestPagedRoomTogetherWithTiering(t *testing.T) {
	for _, shape := range []testmodel.Shape{
		{Arch: "qwen3", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Seed: 3},
		{Arch: "gemma3", Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 3},
	} {
		t.Run(shape.Arch, func(t *testing.T) {
			m := newPagedModel(t, shape)
			// 58 pages of a layer: 19 for each of three layers without a window, or 8 for
			// each of six layers with a window and 10 for the one without
			room := fmt.Sprintf("OLLAMA_PAGED_SPILL_GB=%.9f", 53.0/3*64*bytesPerToken/1e9)
			s := start(t, append(ninePages(t, "OLLAMA_NUM_PARALLEL=3", room), m.env...)...)
			s.create("m", m.gguf)
			var texts []string
			for i := range 4 {
				text, err := testmodel.Prompt(m.shape, 350, int64(120+i))
				require.NoError(t, err)
				texts = append(texts, text)
			}
			for range 3 {
				s.askTogether(requestsFor(texts, 60, func(r *ollamatest.Request) { r.Model, r.Options["num_batch"] = "m", 64 })...)
			}
			require.Regexp(t, restoredLine, s.Logs(), "slots were emptied, and their rows were restored")
			require.NotContains(t, s.Logs(), "error: ")
		})
	}
}

// placedTexts are prompts in groups of four with a common beginning.
func placedTexts(t *testing.T) []string {
	var texts []string
	for i := range 12 {
		root := i % 3
		texts = append(texts, prompt(t, 520+40*root, int64(600+root))+prompt(t, 20+37*(i/3), int64(610+i)))
	}
	return texts
}

// placedRequest is a request whose prompt is computed in batches smaller than a page, so
// that batches of several slots alternate and their rows share pages.
func placedRequest(text string, private bool) ollamatest.Request {
	return requestFor(text, 24, func(r *ollamatest.Request) {
		r.Options["num_batch"] = 64
		if private {
			r.Options["kv_store"] = false
		}
	})
}

// TestPagedPlacedRowsBesideOtherSlots: restored rows stay in the page's file and leave
// memory without being written. Rows of other slots in the same page of cells are in no
// file, and must not be lost with the restored rows. Memory holds a fraction of the slots'
// rows, so that every page leaves memory. Some users disconnect in the middle of an answer.
func TestPagedPlacedRowsBesideOtherSlots(t *testing.T) {
	texts := placedTexts(t)
	fresh := startPlain(t, append(paged(t, 64, plenty), "OLLAMA_NUM_PARALLEL=1")...)
	want := make([]answer, len(texts))
	for i, text := range texts {
		want[i] = fresh.answerTo(placedRequest(text, false))
	}
	require.NoError(t, fresh.Stop())

	s := start(t, append(paged(t, 512, 2), "OLLAMA_NUM_PARALLEL=3", "OLLAMA_MULTIUSER_CACHE=1", "OLLAMA_KV_TIER_COMPRESS=0")...)
	var users errgroup.Group
	got := make([]map[int][]answer, 4) // answers of each user, by text
	for user := range got {
		got[user] = make(map[int][]answer)
		users.Go(func() error {
			rng := rand.New(rand.NewPCG(7, uint64(user)))
			for range 40 {
				i, private := rng.IntN(len(texts)), rng.IntN(4) == 0
				if rng.IntN(5) == 0 {
					ctx, cancel := context.WithTimeout(s.context(), time.Duration(rng.IntN(120))*time.Millisecond)
					_, _ = s.Generate(ctx, placedRequest(texts[i], private))
					cancel()
					continue
				}
				r, err := s.Generate(s.context(), placedRequest(texts[i], private))
				if err != nil {
					return err
				}
				got[user][i] = append(got[user][i], answer{Result: r})
			}
			return nil
		})
	}
	require.NoError(t, users.Wait())
	for _, answers := range got {
		for i, all := range answers {
			for _, a := range all {
				requireClose(t, want[i], a, 0.05)
			}
		}
	}
	require.Regexp(t, restoredLine, s.Logs())
	s.flush()
	require.NoError(t, s.Stop())

	after := startIn(t, s.root, append(paged(t, 64, plenty), "OLLAMA_NUM_PARALLEL=1")...)
	for i, text := range texts {
		requireClose(t, want[i], after.answerTo(placedRequest(text, false)), 0.05)
	}
}

func (s *server) answerTo(r ollamatest.Request) answer {
	s.t.Helper()
	result, err := s.Generate(s.context(), r)
	require.NoError(s.t, err)
	return answer{Result: result}
}
