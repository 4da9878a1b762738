package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// With OLLAMA_MULTIUSER_CACHE, upstream takes the slot used longest ago and forks it from
// the slot that holds the longest prefix: both slots then share cells.

// multiuser starts a server that forks slots and logs each fork.
func multiuser(t *testing.T, slots int, env ...string) *server {
	t.Helper()
	return start(t, append(env, fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots), "OLLAMA_MULTIUSER_CACHE=1", "OLLAMA_DEBUG=1")...)
}

var forkedLine = regexp.MustCompile(`msg="forking cache slot" src=(\d+) dst=(\d+) inputs=(\d+)`)

// forks lists the forks logged after mark, as "src dst inputs".
func (s *server) forks(mark int) (all []string) {
	for _, match := range forkedLine.FindAllStringSubmatch(s.Logs()[mark:], -1) {
		all = append(all, strings.Join(match[1:], " "))
	}
	return all
}

// A forked conversation is stored from the fork on, and the shared history is stored once.
// Both conversations are restored to the last bit after kill -9, in any order of requests.
func TestForkedSlotIsStored(t *testing.T) {
	for _, kind := range []struct{ flash, cache string }{{"1", "f16"}, {"1", "q8_0"}, {"0", "f16"}} {
		t.Run("flash "+kind.flash+" "+kind.cache, func(t *testing.T) {
			s := multiuser(t, 3, "OLLAMA_FLASH_ATTENTION="+kind.flash, "OLLAMA_KV_CACHE_TYPE="+kind.cache)
			const shared, own = 2*pageTokens + 100, pageTokens + 50
			history := prompt(t, shared, 70)
			left, right := history+prompt(t, own, 71), history+prompt(t, own, 72)

			s.ask(left, 33)
			mark := s.LogMark()
			first := s.ask(right, 33)
			require.Len(t, s.forks(mark), 1)
			require.Equal(t, "0 1", s.forks(mark)[0][:3])
			require.Zero(t, first.restored, "the source slot had the whole history")
			heldRight := s.ask(right, 33)
			requireClose(t, first, heldRight, 0.02)
			heldLeft := s.ask(left, 33)
			require.Zero(t, heldLeft.restored)

			s.flush()
			// two pages of the history, and for each branch the page in which the history
			// ends and the full pages after it
			perBranch := (shared+own+33-1)/pageTokens - shared/pageTokens
			require.Len(t, s.fullPages(), shared/pageTokens+2*perBranch, "the shared pages are stored once")

			for _, order := range [][]string{{left, right}, {right, left}} {
				s.crash()
				for i, text := range order {
					got := s.ask(text, 33)
					held := heldLeft
					if text == right {
						held = heldRight
					}
					want := []int{shared + own - 1}
					if i > 0 { // in a slot before the first is asked for, or else the history is forked again
						want = append(want, own-1)
					}
					require.Contains(t, want, got.restored)
					if kind.flash == "1" {
						requireSame(t, held, got, "after kill -9")
					} else { // another window of cells changes the order of additions
						requireClose(t, held, got, 0.02)
					}
				}
			}
		})
	}
}

// A slot that is forked while it decodes goes on undisturbed, and both answers are stored.
func TestForkWhileDecoding(t *testing.T) {
	s := multiuser(t, 2)
	history := prompt(t, 2*pageTokens+100, 73)
	s.ask(history, 1) // both begin with the held history
	mark := s.LogMark()
	left := make(chan ollamatest.Result, 1)
	failed := make(chan error, 1)
	const long = 400
	request := requestFor(history+prompt(t, 20, 74), long)
	go func() {
		result, err := s.Generate(s.context(), request)
		left <- result
		failed <- err
	}()
	require.NoError(t, s.WaitLogFrom(s.context(), mark, `msg="loading cache slot"`))
	right := s.ask(history+prompt(t, 20, 75), 40)
	decoded := <-left
	require.NoError(t, <-failed)
	require.Equal(t, long, decoded.EvalCount)
	forks := s.forks(mark)
	require.NotEmpty(t, forks)

	s.crash()
	for i, want := range []answer{{Result: decoded}, right} {
		got := s.ask(history+prompt(t, 20, int64(74+i)), len(want.Logprobs))
		if i == 0 {
			require.Equal(t, 2*pageTokens+119, got.restored)
		} else {
			require.Contains(t, []int{19, 2*pageTokens + 119}, got.restored, "forked again, or in a slot before")
		}
		requireClose(t, want, got, 0.02)
	}
}

// Several users with one system prompt and a conversation each take turns in fewer slots.
// Each turn, before and after kill -9, gives the same answer as with the conversation in its
// slot.
func TestMultiUserTurns(t *testing.T) {
	s := multiuser(t, 2)
	system := prompt(t, pageTokens+200, 80)
	texts := make([]string, 4)
	held := make([]answer, len(texts))
	for user := range texts {
		texts[user] = system + prompt(t, 150+10*user, int64(81+user))
		s.ask(texts[user], 20)
		held[user] = s.ask(texts[user], 20)
	}
	require.NotEmpty(t, s.forks(0), "the system prompt is shared")
	turn := func(when string) {
		for user, text := range texts {
			got := s.ask(text, 20)
			requireClose(t, held[user], got, 0.02)
			require.Equal(t, held[user].PromptEvalCount, got.PromptEvalCount, when)
		}
	}
	turn("in other slots")
	for user := range texts { // the conversations go on
		texts[user] += prompt(t, 200, int64(90+user))
		s.ask(texts[user], 20)
		held[user] = s.ask(texts[user], 20)
	}
	turn("in the second turn")
	s.crash()
	mark := s.LogMark()
	turn("after kill -9")
	require.Contains(t, s.Logs()[mark:], "kv tier: restored")
}

// Concurrent requests with one long prefix, each in its own slot, all restore the prefix and
// give equal answers.
func TestSlotsRestoreOnePrefixTogether(t *testing.T) {
	for _, mode := range []string{"0", "1"} {
		s := start(t, "OLLAMA_NUM_PARALLEL=4", "OLLAMA_MULTIUSER_CACHE="+mode)
		history := prompt(t, 4*pageTokens+100, 95)
		s.ask(history, 1)
		const answered = 100 // long enough for all to be in use at the same time
		held := s.ask(history, answered)
		s.crash()
		s.ask(prompt(t, 20, 96), 1) // the model is loaded
		mark := s.LogMark()
		for _, got := range s.askTogether(requestsFor(slices.Repeat([]string{history}, 4), answered)...) {
			requireClose(t, held, got, 0.02)
		}
		if mode == "0" {
			require.Equal(t, 4, strings.Count(s.Logs()[mark:], fmt.Sprint("tokens=", 4*pageTokens+99, " ")), "each restored the whole prefix")
		}
	}
}
