package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// Prompts of less than a page, of one page, and of one token more are restored whole, except
// the token to sample from.
func TestPromptLengths(t *testing.T) {
	s := start(t)
	for i, n := range []int{2, 37, pageTokens - 1, pageTokens, pageTokens + 1, 2 * pageTokens, 2*pageTokens + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s.t = t
			text := prompt(t, n, int64(100+i))
			s.ask(text, 33)
			held := s.ask(text, 33)
			s.crash()
			got := s.ask(text, 33)
			require.Equal(t, n-1, got.restored)
			requireSame(t, held, got, "after kill -9")
		})
	}
}

// A conversation goes on from its own answer in another process.
func TestNextTurn(t *testing.T) {
	s := start(t)
	first := prompt(t, 300, 1)
	answer := s.ask(first, 50)
	second := first + answer.Text + prompt(t, 40, 2)
	s.unload()
	got := s.ask(second, 33)
	// an answer of random tokens is tokenized in another way as text of a prompt: rows are
	// used as far as the tokens agree
	require.Greater(t, got.restored, 300, "the prompt and the beginning of the answer")
	held := s.ask(second, 33)
	s.crash()
	requireSame(t, held, s.ask(second, 33), "second turn")
}

// keep_alive: 0 kills the runner right after the answer; no page is lost.
func TestKeepAliveZeroLosesNothing(t *testing.T) {
	s := start(t)
	first := prompt(t, 300, 3)
	answer := s.ask(first, 50, func(r *ollamatest.Request) { r.KeepAlive = ollamatest.KeepAlive(0) })
	require.NoError(t, s.WaitUnloaded(s.context(), model)) // until then the next request would use its runner
	got := s.ask(first+answer.Text+prompt(t, 20, 4), 8)
	require.Greater(t, got.restored, 300, "the prompt and the beginning of the answer")
}

// A regenerate sends the same prompt again after its answer was stored.
func TestRegenerate(t *testing.T) {
	s := start(t)
	text := prompt(t, 400, 5)
	s.ask(text, 130) // the answer completes the page that the prompt began
	held := s.ask(text, 33)
	s.ask(prompt(t, 600, 6), 4)
	got := s.ask(text, 33)
	require.Equal(t, 399, got.restored)
	requireSame(t, held, got, "regenerate")
}

// Two continuations of one history do not disturb each other.
func TestBranch(t *testing.T) {
	s := start(t)
	history := prompt(t, 700, 7)
	left, right := history+prompt(t, 90, 8), history+prompt(t, 90, 9)
	s.ask(left, 33)
	heldLeft := s.ask(left, 33)
	s.ask(prompt(t, 500, 10), 4)
	branch := s.ask(right, 33)
	require.GreaterOrEqual(t, branch.restored, 2*pageTokens, "the shared pages")
	heldRight := s.ask(right, 33)
	s.crash()
	requireSame(t, heldRight, s.ask(right, 33), "right branch")
	s.ask(prompt(t, 500, 10), 4)
	requireSame(t, heldLeft, s.ask(left, 33), "left branch")
}

// A shift in the middle of generation stores the rows that it discards, and no row that it
// moves.
func TestContextShift(t *testing.T) {
	const ctx = 1024
	s := start(t)
	limit := func(r *ollamatest.Request) { r.Options["num_ctx"] = ctx }
	text := prompt(t, ctx-40, 11)
	long := s.ask(text, 300, limit)
	require.Len(t, long.Logprobs, 300, "generation went on past the context")
	require.Contains(t, s.flushed(), "kv tier: on")

	held := s.ask(text, 33, limit) // the slot was shifted, so its prompt is restored from the disk
	require.GreaterOrEqual(t, held.restored, 3*pageTokens)
	again := s.ask(text, 33, limit)
	s.crash()
	got := s.ask(text, 33, limit)
	requireSame(t, again, got, "after a shift and kill -9")
	requireCold(t, s, text, got, limit)
}

// flushed returns the log after everything sealed was stored.
func (s *server) flushed() string {
	s.unload()
	return s.Logs()
}

// requireCold compares an answer with that of a server without tiering: the text, and log
// probabilities within the effect of other batch shapes.
func requireCold(t *testing.T, s *server, text string, got answer, change ...func(*ollamatest.Request)) {
	t.Helper()
	cold := start(t)
	want := cold.ask(text, len(got.Logprobs), change...)
	require.Zero(t, want.restored)
	requireClose(t, want, got, 0.02)
}

// A client disconnects while its prompt is evaluated. Upstream notices at the first token,
// and the pages of the prompt are stored.
func TestDisconnectDuringPrompt(t *testing.T) {
	s := start(t)
	small := func(r *ollamatest.Request) { r.Options["num_batch"], r.Options["num_thread"] = 32, 1 } // many batches
	s.ask(prompt(t, 30, 20), 2, small)
	text := prompt(t, 1900, 12)
	ctx, cancel := context.WithCancel(s.context())
	defer cancel()
	gone := make(chan error)
	go func() {
		result, err := s.Generate(ctx, requestFor(text, 500, small))
		if result.Chunks > 0 {
			err = errors.New("the prompt was evaluated before the client disconnected")
		}
		gone <- err
	}()
	require.Eventually(t, func() bool { return len(s.fullPages()) > 0 }, time.Minute, time.Millisecond,
		"a page of the long prompt: of the short one there are tails")
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)

	// the next request waits until the slot is free, and unloading flushes
	s.ask(prompt(t, 30, 13), 2, small)
	s.unload()
	got := s.ask(text, 8, small)
	require.GreaterOrEqual(t, got.restored, 7*pageTokens)
}

// Rows restored into scattered cells give the same result within rounding.
func TestScatteredCells(t *testing.T) {
	s := start(t, "OLLAMA_NUM_PARALLEL=2", "OLLAMA_MULTIUSER_CACHE=1")
	text := prompt(t, 2*pageTokens+100, 14)
	s.ask(text, 33)
	held := s.ask(text, 33)

	// two chats grow in turns, so that their cells interleave; then one of them leaves
	a, b := prompt(t, 200, 15), prompt(t, 200, 16)
	for i := range 4 {
		s.ask(a, 2)
		s.ask(b, 2)
		a += prompt(t, 100, int64(20+i))
		b += prompt(t, 100, int64(30+i))
	}
	got := s.ask(text, 33)
	require.Equal(t, 2*pageTokens+99, got.restored)
	requireClose(t, held, got, 0.01)
}

// No page of a private request is stored.
func TestPrivateRequest(t *testing.T) {
	s := start(t)
	text := prompt(t, 700, 17)
	s.ask(text, 40, private)
	s.ask(text+prompt(t, 300, 18), 40, private)
	s.ask(prompt(t, 20, 19), 4, private)
	s.unload()
	require.Empty(t, s.pages())
	require.Zero(t, s.ask(text, 4).restored)
	s.unload()
	require.NotEmpty(t, s.pages())
}

// A private request reaches the end of its context in a model that cannot shift. The kept
// text is computed again from the first position on, at positions that had public text
// before.
func TestPrivateRequestThatIsComputedAnew(t *testing.T) {
	s := modelServer{start(t, "OLLAMA_NEW_ENGINE=1", "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_TIER_PAGE_TOKENS=64")}
	m := s.load(t, "qwen3next")
	small := func(r *ollamatest.Request) {
		r.Model = "qwen3next"
		r.Options["num_ctx"], r.Options["num_batch"], r.Options["num_keep"] = 512, 64, 4
	}
	public := m.prompt(320, 401)
	m.server.ask(public, 1, small)
	m.flush()
	stored := m.pages()
	require.NotEmpty(t, stored)
	answer := m.server.ask(public+m.prompt(150, 402), 150, small, private)
	require.Equal(t, 150, answer.EvalCount, "past the end of the context")
	m.flush()
	m.unload()
	require.Subset(t, stored, m.pages())
}

// Parallel requests restore while others decode.
func TestParallelRequests(t *testing.T) {
	s := start(t, "OLLAMA_NUM_PARALLEL=4")
	texts := make([]string, 4)
	for i := range texts {
		texts[i] = prompt(t, 500+37*i, int64(40+i))
		s.ask(texts[i], 4)
	}
	s.crash()
	mark := s.LogMark()
	for _, a := range s.askTogether(requestsFor(texts, 60)...) {
		require.Equal(t, 60, a.EvalCount)
	}
	require.Equal(t, 4, strings.Count(s.Logs()[mark:], "kv tier: restored"))
}

// Ctrl-C, and stopping a service, signal runner and server at once: the runner stores its
// pages before it ends.
func TestSignalledRunnerStoresItsPages(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		s := start(t)
		text := prompt(t, 700, 60)
		s.ask(text, 4)
		runners, err := s.Runners()
		require.NoError(t, err)
		require.Len(t, runners, 1)
		runner, err := os.FindProcess(runners[0])
		require.NoError(t, err)
		require.NoError(t, runner.Signal(signal))
		require.Eventually(t, func() bool {
			left, err := s.Runners()
			return err == nil && len(left) == 0
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, s.KillServer())
		require.NoError(t, s.Restart(s.context()))
		require.Equal(t, 699, s.ask(text, 4).restored, "%v", signal)
	}
}
