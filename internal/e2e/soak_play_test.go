package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
)

const (
	soakTop   = 20 // compared log probabilities per token, the most that Ollama gives
	soakShown = 12 // rounds of the history that a failure shows
)

// soakPlay is a history being played.
type soakPlay struct {
	soakSetup
	t             *testing.T
	history       soak.History
	stock, tiered *server
	chats         *soak.Chats
	pictures      map[uint64][]byte

	shift     bool // requests shift when the context is full
	round     int
	answers   int
	probes    int
	apartMost float64
	restored  int // requests with a restore
	misled    int // stock answers that differ from the same request alone
}

// playSoak plays a history and returns the number of requests with a restore.
func playSoak(t *testing.T, setup soakSetup, history soak.History) int {
	t.Logf("seed %d: %s", history.Seed, strings.Join(append(setup.common, setup.tier...), " "))
	start := func(root, binary string, env ...string) *server {
		s := startOptions(t, root, ollamatest.Options{Binary: binary, Env: append(env, setup.common...)})
		s.skipWithout(setup.arch)
		s.create(setup.arch, setup.gguf)
		if setup.embeds {
			s.create(soakEmbedder, embedder(t))
		}
		return s
	}
	p := &soakPlay{
		soakSetup: setup, t: t, shift: setup.slots == 1, history: history, pictures: make(map[uint64][]byte),
		stock:  start("", os.Getenv(soakStockEnv)),
		tiered: start(setup.root, setup.binary, setup.tier...),
	}
	p.chats = soak.NewChats(history.System, func(tokens int, seed int64) string {
		text, err := testmodel.Prompt(setup.shape, tokens, seed)
		require.NoError(t, err)
		return text
	})
	began := time.Now()
	for i, round := range history.Rounds {
		p.round = i
		p.play(round)
	}
	t.Logf("seed %d: %d rounds in %v: %d answers and %d forced tokens compared, at most %.2g apart; restored for %d requests; the stock server was wrong %d times",
		history.Seed, len(history.Rounds), time.Since(began).Round(time.Second), p.answers, p.probes, p.apartMost, p.restored, p.misled)
	p.finish()
	return p.restored
}

// check fails the test, with the variables that play the history again.
func (p *soakPlay) check(err error, doing string, args ...any) {
	p.t.Helper()
	if err == nil {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		p.t.Logf("the tiered server's runners:\n%s", stacksOf(p.tiered))
	}
	test := strings.SplitN(p.t.Name(), "/", 3)
	p.t.Fatalf("%s: %v\nround %d of seed %d; the last rounds until then:\n%splay it again with\n  %s=%d %s=%s go test -run %s ./internal/e2e",
		fmt.Sprintf(doing, args...), err, p.round, p.history.Seed, p.history.Until(p.round, soakShown),
		soakSeedEnv, p.history.Seed, soakArchEnv, p.arch, test[0])
}

func (p *soakPlay) play(round soak.Round) {
	mark := p.tiered.LogMark()
	p.check(p.happen(round.Event), "%s", round.Event)
	requests := make([]asked, len(round.Requests))
	for i, r := range round.Requests {
		requests[i] = asked{r, p.chats.Ask(r)}
		for _, m := range requests[i].messages {
			if m.Image != 0 && p.pictures[m.Image] == nil {
				p.pictures[m.Image] = picture(p.t, m.Image)
			}
		}
	}
	if round.Event == soak.Crash {
		p.check(p.crashDuring(requests, round.CrashAfter), "killing the server during a round")
	}

	embedded := make(chan error, 1)
	go func() { embedded <- p.embed() }()
	want, got := make([]ollamatest.Result, len(requests)), make([]ollamatest.Result, len(requests))
	p.check(both(
		func() error {
			return forAll(len(requests), func(i int) (err error) {
				if requests[i].Kind != soak.GiveUp {
					want[i], err = p.ask(p.stock, requests[i])
				}
				return err
			})
		},
		func() error {
			return forAll(len(requests), func(i int) (err error) {
				for _, after := range requests[i].Leave {
					if err := p.leave(requests[i], after); err != nil {
						return err
					}
				}
				if requests[i].Kind != soak.GiveUp {
					got[i], err = p.ask(p.tiered, requests[i])
				}
				return err
			})
		}), "asking")
	p.check(<-embedded, "embedding")

	for i, a := range requests {
		if a.Kind == soak.GiveUp {
			continue
		}
		p.check(p.agree(&want[i], got[i], func() (ollamatest.Result, error) { return p.ask(p.stock, a) }),
			"comparing the answers to %q", a.Request)
		p.chats.Answered(a.Request, want[i].Text)
		p.answers++
	}
	p.countRestored(round, mark)
	if !p.exact && !p.near {
		p.check(p.force(requests, want), "comparing with teacher forcing")
	}
}

// agree does as compare, except for models with recurrent state: for these, the stock server
// is asked again alone before the tiered server counts as wrong. Stock Ollama lets a batch
// of an ended sequence write to the state of the next one (see kvcache.TieredCausal.Settle).
func (p *soakPlay) agree(want *ollamatest.Result, got ollamatest.Result, alone func() (ollamatest.Result, error)) error {
	err := p.compare(*want, got)
	if err == nil || !slices.Contains(recurrent, p.arch) {
		return err
	}
	if err := p.stock.Unload(p.stock.context(), p.arch); err != nil {
		return err
	}
	if *want, err = alone(); err != nil {
		return err
	}
	p.misled++
	return p.compare(*want, got)
}

func (p *soakPlay) compare(want, got ollamatest.Result) error {
	if want.PromptEvalCount != got.PromptEvalCount {
		return fmt.Errorf("a prompt of %d tokens, want %d", got.PromptEvalCount, want.PromptEvalCount)
	}
	if p.near {
		return nil
	}
	if p.exact {
		return soak.Same(comparable(want), comparable(got))
	}
	apart, err := soak.Within(comparable(want), comparable(got), p.bound)
	if err == nil {
		p.apartMost = max(p.apartMost, apart)
	}
	return err
}

// soakEmbedder is a model of embeddings.
const soakEmbedder = "embedder"

// embedder is the file of a model of embeddings.
func embedder(t *testing.T) string {
	t.Helper()
	s := shape
	s.Pooling = 3
	gguf := filepath.Join(t.TempDir(), "embedder.gguf")
	require.NoError(t, testmodel.Write(gguf, s))
	return gguf
}

// embed compares the servers' embeddings of a text, if the history has any.
func (p *soakPlay) embed() error {
	if !p.embeds {
		return nil
	}
	text, err := testmodel.Prompt(shape, 40, int64(p.round))
	if err != nil {
		return err
	}
	vectors := make([][]float32, 2)
	if err := forAll(2, func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		response, err := []*server{p.stock, p.tiered}[i].API().Embed(ctx, &api.EmbedRequest{
			Model: soakEmbedder, Input: text, Options: oneThread(map[string]any{}), KeepAlive: ollamatest.KeepAlive(time.Hour),
		})
		if err == nil {
			vectors[i] = response.Embeddings[0]
		}
		return err
	}); err != nil {
		return err
	}
	if len(vectors[0]) != len(vectors[1]) {
		return fmt.Errorf("embeddings of %d and %d numbers", len(vectors[0]), len(vectors[1]))
	}
	for i, want := range vectors[0] {
		if math.Abs(float64(want-vectors[1][i])) > p.bound {
			return fmt.Errorf("number %d of an embedding is %v, want %v", i, vectors[1][i], want)
		}
	}
	return nil
}

// stacksOf ends the runners of a server that does not answer, and returns the stacks of their goroutines.
var stacksOf = func(*server) string { return "no stacks on this system" }

// happen disturbs the tiered server before a round.
func (p *soakPlay) happen(e soak.Event) error {
	s := p.tiered
	switch e {
	case soak.Unload:
		return s.Unload(s.context(), p.arch)
	case soak.KillRunner:
		if runners, err := s.Runners(); err != nil || len(runners) == 0 {
			return err
		}
		return s.KillRunner()
	case soak.KillStored:
		s.flush()
		fallthrough
	case soak.Kill:
		return errors.Join(s.KillServer(), s.Restart(s.context()))
	}
	return nil
}

// crashDuring makes requests and kills the server when the first answer has `after` tokens.
func (p *soakPlay) crashDuring(requests []asked, after int) error {
	reached, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		_ = forAll(len(requests), func(i int) error { // these requests fail, as they must
			return p.stream(requests[i], func(tokens int) {
				if i == 0 && tokens >= after {
					once.Do(func() { close(reached) })
				}
			})
		})
	}()
	select {
	case <-reached:
	case <-done:
	}
	err := p.tiered.KillServer()
	<-done
	return errors.Join(err, p.tiered.Restart(p.tiered.context()))
}
