package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/pairs"
	"github.com/kvtier/kvtier/internal/soak"
)

// TestSoakPairs plays a short history with every pair of optional features, and requires the refusal of two
// that do not go together. The variables of the soak choose seeds and a longer time; without them
// the seed draws a third of the pairs.
func TestSoakPairs(t *testing.T) {
	if _, err := ollamatest.FindBinary(); err != nil {
		t.Skip(err)
	}
	models, seeds, minutes := soakPlan(t)
	all := pairs.All()
	third := minutes == 0 && os.Getenv(soakSeedEnv) == ""
	for i, pair := range all {
		if third && pair.Refused == "" && uint64(i)%3 != seeds[len(seeds)-1]%3 {
			continue
		}
		t.Run(pair.String(), func(t *testing.T) {
			if pair.Refused != "" {
				requireRefused(t, pair)
				return
			}
			end := time.Now().Add(time.Duration(minutes * float64(time.Minute) / float64(len(all))))
			restored, eager := 0, false
			for first, seed := seeds[len(seeds)-1], seeds[len(seeds)-1]; !t.Failed(); seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					setup := pairSetup(t, models[0], pair, seed)
					eager = setup.eager
					restored += playSoak(t, setup, soak.New(seed, soak.Config{Rounds: pairRounds, Chats: 4, Slots: setup.slots, Context: soakContext}))
				})
				if (restored > 0 || !eager) && !time.Now().Before(end) {
					break
				}
				require.True(t, restored > 0 || !eager || seed < first+10, "ten histories restored nothing")
			}
		})
	}
}

// pairSetup is the setup of a seed with two features more. There are several slots even if that is
// not one of the two: most faults of two features need two requests at a time.
func pairSetup(t *testing.T, m soakModel, pair pairs.Pair, seed uint64) soakSetup {
	t.Helper()
	slots := 2
	if pair.Has(pairs.Slots) {
		slots = 4
	}
	s := newSoakSetup(t, m, seed, slots)
	s.near, s.embeds = pair.Near() || pair.Has(pairs.Elastic), pair.Has(pairs.Embeddings) // under a limit answers give way
	if !pair.Tiered() {
		s.tier, s.eager = []string{"OLLAMA_KV_TIERING=0"}, false
	}
	if pair.Has(pairs.Lossy) && s.remote == "" {
		s.useRemote(t)
	}
	if pair.Has(pairs.Elastic) {
		s.tier = append(s.tier, elasticOn(t)...)
		limit := slots // two thirds of the contexts
		if slices.Contains(s.common, "OLLAMA_FLASH_ATTENTION=false") {
			limit += slots/2 - slots/4 // V is permuted then, and has memory for all of them
		}
		if s.embeds {
			limit += 4 // for the model that makes them
		}
		s.tier = append(s.tier, fmt.Sprint("OLLAMA_KVCACHED_LIMIT_MB=", limit))
	}
	if pair.Has(pairs.Paged) {
		s.tier = append(s.tier, paged(t, 64, plenty)...)
		s.tier = append(s.tier, fmt.Sprint("OLLAMA_PAGED_AFTER=", int(seed%3)*slots*soakContext/4)) // of slots*soakContext
		s.common = append(s.common, "OLLAMA_FLASH_ATTENTION=1")
	}
	for _, name := range pair.Env() {
		if strings.HasPrefix(name, "OLLAMA_MULTIUSER") {
			s.common = append(s.common, name)
		} else {
			s.tier = append(s.tier, name)
		}
	}
	return s
}

// requireRefused fails unless a request for a model is told that two features do not go together.
func requireRefused(t *testing.T, pair pairs.Pair) {
	t.Helper()
	s := startPlain(t, pair.Env()...)
	_, err := s.Generate(s.context(), ollamatest.Request{Model: model, Prompt: "a", Raw: true, Options: oneThread(ollamatest.Greedy(1, numCtx))})
	require.ErrorContains(t, err, pair.Refused)
}

func init() {
	stacksOf = func(s *server) string {
		runners, err := s.Runners()
		if err != nil || len(runners) == 0 {
			return fmt.Sprint("there is none: ", err)
		}
		mark := s.LogMark()
		for _, pid := range runners {
			_ = syscall.Kill(pid, syscall.SIGQUIT) // a runner in Go prints its stacks, and ends
		}
		gone := func() bool { left, err := s.Runners(); return err == nil && len(left) == 0 }
		require.Eventually(s.t, gone, timeout, 10*time.Millisecond, "the runners that were asked for their stacks end")
		return s.Server.Logs()[mark:]
	}
}
