package e2e

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

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
	r := ollamatest.Request{Model: model, Prompt: text, Raw: true, Options: oneThread(ollamatest.Greedy(24, numCtx)),
		Logprobs: true, TopLogprobs: 5, KeepAlive: ollamatest.KeepAlive(10 * time.Minute)}
	r.Options["num_batch"] = 64
	if private {
		r.Options["kv_store"] = false
	}
	return r
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
