package llamae2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// These variables are those of the soak of package e2e; see CONTRIBUTING.md.
const (
	soakSeedEnv    = "KVTIER_SOAK_SEED"
	soakMinutesEnv = "KVTIER_SOAK_MINUTES"
	soakContext    = 1024 // tokens of a slot
	soakShown      = 12   // rounds of the history that a failure shows
	// With up to so many tokens drafted at once, an answer ends up to as many sooner where the context is
	// full: llama-server counts all tokens of a batch before it sends the first.
	soakDrafted = 4
)

// soakSetup is a kind of server and model for random histories.
type soakSetup struct {
	name  string
	shape testmodel.Shape
	slots int
	args  string
	bound float64 // of log probabilities; 0: the same to the bit

	// Ours drafts tokens, and the stock server does not: drafts have no log probabilities. drafts are the
	// arguments, and draft is a draft model, without an architecture none.
	drafts string
	draft  testmodel.Shape
}

// One token per batch makes rows depend on nothing but the tokens before them.
var soakSetups = []soakSetup{
	{name: "dense", shape: testmodel.Shape{Arch: "qwen3"}, slots: 1, args: "-ub 1 -t 1"},
	{name: "quantized", shape: testmodel.Shape{Arch: "llama"}, slots: 1, args: "-ub 1 -t 1 -ctk q8_0 -ctv q8_0"},
	{name: "hybrid", shape: testmodel.Shape{Arch: "lfm2"}, slots: 1, args: "-ub 1 -t 1"},
	{name: "window", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, slots: 1, bound: 0.05},
	{name: "several slots", shape: testmodel.Shape{Arch: "qwen3"}, slots: 3, bound: 0.03},
	{name: "unified slots", shape: testmodel.Shape{Arch: "llama"}, slots: 3, args: "-kvu", bound: 0.03},
	{name: "drafts that are right", shape: testmodel.Shape{Arch: "llama"}, slots: 1, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-simple", draft: testmodel.Shape{Arch: "llama"}},
	{name: "drafts of a smaller model", shape: testmodel.Shape{Arch: "qwen3", Layers: 4, Embed: 256}, slots: 3, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-simple", draft: testmodel.Shape{Arch: "llama", Layers: 1}},
	{name: "drafts for windows", shape: testmodel.Shape{Arch: "gemma3", Window: 128}, slots: 3, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-simple", draft: testmodel.Shape{Arch: "gemma3", Window: 128}},
	// With -nr: where weights are in buffers for AMX, llama.cpp b10970 computes other answers in several
	// slots than in one, for these two.
	{name: "drafts for a hybrid", shape: testmodel.Shape{Arch: "lfm2"}, slots: 3, args: "-t 1 -nr", bound: 0.05, drafts: "--spec-type draft-simple", draft: testmodel.Shape{Arch: "lfm2"}},
	{name: "draft layers", shape: testmodel.Shape{Arch: "qwen35", Drafts: true, LlamaCpp: true}, slots: 1, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-mtp"},
	{name: "draft layers in several slots", shape: testmodel.Shape{Arch: "qwen35", Drafts: true, LlamaCpp: true}, slots: 3, args: "-t 1 -nr", bound: 0.05, drafts: "--spec-type draft-mtp"},
	{name: "drafts of a model that shares layers", shape: testmodel.Shape{Arch: "gemma4", Window: 128}, slots: 3, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-mtp", draft: testmodel.Shape{Arch: "gemma4-assistant", Window: 128}},
	{name: "drafts of EAGLE", shape: testmodel.Shape{Arch: "llama"}, slots: 3, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-eagle3", draft: testmodel.Shape{Arch: "eagle3"}},
	{name: "drafts of DFlash", shape: testmodel.Shape{Arch: "lfm2"}, slots: 1, args: "-t 1", bound: 0.05, drafts: "--spec-type draft-dflash", draft: testmodel.Shape{Arch: "dflash"}},
	{name: "drafts from the text", shape: testmodel.Shape{Arch: "llama"}, slots: 1, args: "-t 1", bound: 0.05, drafts: "--spec-type ngram-mod"},
}

// TestSoak plays random histories of users on a stock server, and on ours, which is unloaded
// and killed meanwhile, and compares all answers.
func TestSoak(t *testing.T) {
	seed, minutes := rand.Uint64N(1<<40), 0.0 // a run plays histories that no run has played before
	for name, read := range map[string]func(text string) error{
		soakSeedEnv:    func(text string) (err error) { seed, err = strconv.ParseUint(text, 10, 64); return err },
		soakMinutesEnv: func(text string) (err error) { minutes, err = strconv.ParseFloat(text, 64); return err },
	} {
		if text := os.Getenv(name); text != "" {
			require.NoError(t, read(text), name)
		}
	}
	for _, setup := range soakSetups {
		t.Run(setup.name, func(t *testing.T) {
			end := time.Now().Add(time.Duration(minutes * float64(time.Minute) / float64(len(soakSetups))))
			for ; !t.Failed(); seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { playSoak(t, setup, seed) })
				if !time.Now().Before(end) {
					return
				}
			}
		})
	}
}

// play is a history that is played.
type play struct {
	soakSetup
	t       *testing.T
	history soak.History
	chats   *soak.Chats
	stock   *server
	ours    *server
	options llamatest.Options
	round   int
	answers int
	kills   int
}

// options say how to start the stock server.
func (setup soakSetup) options(t *testing.T) llamatest.Options {
	return llamatest.Options{Model: aModel(t, setup.shape), Args: append(strings.Fields(setup.args),
		"-np", fmt.Sprint(setup.slots), "-c", fmt.Sprint(setup.slots*soakContext), "--no-context-shift")}
}

// drafting returns the options of a server that also drafts, if the setup has drafts.
func (setup soakSetup) drafting(t *testing.T, o llamatest.Options) llamatest.Options {
	o.Args = slices.Clone(o.Args)
	if setup.drafts != "" {
		o.Args = append(o.Args, strings.Fields(fmt.Sprint(setup.drafts, " --spec-draft-n-max ", soakDrafted, " -td 1"))...)
	}
	if setup.draft.Arch != "" {
		o.Args = append(o.Args, "-md", aModel(t, setup.draft))
	}
	return o
}

func playSoak(t *testing.T, setup soakSetup, seed uint64) {
	p := &play{soakSetup: setup, t: t, options: setup.options(t)}
	p.stock = start(t, p.options)
	p.options = setup.drafting(t, p.options)
	p.options.Root = filepath.Join(t.TempDir(), "pages")
	p.ours = start(t, p.options)
	p.history = soak.New(seed, soak.Config{Rounds: 20, Chats: setup.slots + 2, Slots: setup.slots, Context: soakContext})
	p.chats = soak.NewChats(p.history.System, func(tokens int, seed int64) string {
		text, err := testmodel.Prompt(setup.shape.WithDefaults(), tokens, seed)
		require.NoError(t, err)
		return text
	})
	for i, round := range p.history.Rounds {
		p.round = i
		p.play(round)
	}
	log := p.ours.killed()
	// scripts/test-long adds them up.
	t.Logf("seed %d: %d answers compared, %d restores, %d kills", seed, p.answers, strings.Count(log, "kv tier: restored"), p.kills)
}

// killAll kills all processes at once.
func (s *server) killAll() {
	pids, err := s.Processes()
	require.NoError(s.t, err)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended with another
	}
	s.Wait()
}

// killEngine kills the real server, with which the others end.
func (s *server) killEngine() {
	pids, err := s.Processes()
	require.NoError(s.t, err)
	if len(pids) > 0 {
		_ = unix.Kill(pids[len(pids)-1], unix.SIGKILL) // it may have ended
	}
	s.Wait()
}

// said is an answer, or the status of a refused request.
type said struct {
	status    int
	text      string
	logprobs  []api.Logprob
	truncated bool // it ends because the context is full
}

// forgive forgets the deaths of servers: after three in ten minutes the next would run without
// tiering.
func (p *play) forgive() {
	if err := os.Remove(filepath.Join(p.options.Root, "llama-server.json")); !os.IsNotExist(err) {
		require.NoError(p.t, err)
	}
}

func (p *play) play(round soak.Round) {
	switch round.Event {
	case soak.Unload, soak.KillStored:
		p.ours.Kill()
	case soak.Kill:
		p.ours.killAll()
	case soak.KillRunner:
		p.ours.killEngine()
	}
	if round.Event != soak.Nothing {
		p.kills++
	}
	if round.Event != soak.Nothing && round.Event != soak.Crash {
		p.forgive()
		p.ours = start(p.t, p.options)
	}
	prompts := make([]string, len(round.Requests))
	for i, r := range round.Requests {
		prompts[i] = soak.Render(p.chats.Ask(r))
	}
	if round.Event == soak.Crash {
		p.crash(round, prompts)
	}
	want := p.all(round, func(i int, r soak.Request) said { return ask(p.stock, body(prompts[i], r.Answer, false)) })
	got := p.all(round, func(i int, r soak.Request) said {
		for _, after := range r.Leave {
			p.leave(p.ours, prompts[i], r.Answer, after)
		}
		return ask(p.ours, body(prompts[i], r.Answer, false))
	})
	for i, r := range round.Requests {
		if r.Kind == soak.GiveUp {
			continue
		}
		p.compare(r, prompts[i], want[i], got[i])
		p.chats.Answered(r, want[i].text)
		p.answers++
	}
}

// all asks the requests of a round at the same time.
func (p *play) all(round soak.Round, ask func(i int, r soak.Request) said) []said {
	answers := make([]said, len(round.Requests))
	var all sync.WaitGroup
	for i, r := range round.Requests {
		all.Add(1)
		go func() {
			defer all.Done()
			answers[i] = ask(i, r)
		}()
	}
	all.Wait()
	return answers
}

// compare compares an answer with that of the stock server. Where that one went on in its slot and is further off than
// the bound, as with windows in llama.cpp b10970, the answer that it computes anew, and alone, decides.
func (p *play) compare(r soak.Request, prompt string, want, got said) {
	err := p.differs(want, got)
	if err != nil && p.bound > 0 {
		anew := body(prompt, r.Answer, false)
		anew["cache_prompt"] = false
		if p.differs(ask(p.stock, anew), got) == nil {
			p.t.Logf("the stock server is off in its slot, in round %d of seed %d: %v", p.round, p.history.Seed, err)
			return
		}
	}
	if err != nil {
		require.Failf(p.t, "another answer", "to %q: %v\nround %d of seed %d; the last rounds until then:\n%splay it again with\n  %s=%d go test -run 'TestSoak/%s' ./internal/llamae2e",
			r, err, p.round, p.history.Seed, p.history.Until(p.round, soakShown), soakSeedEnv, p.history.Seed, strings.ReplaceAll(p.name, " ", "_"))
	}
}

// differs returns in what an answer differs from the one that is wanted.
func (p *play) differs(want, got said) (err error) {
	switch {
	case want.status != got.status:
		err = fmt.Errorf("status %d, want %d: %s", got.status, want.status, got.text)
	case want.status != http.StatusOK:
	case p.drafts != "":
		fewer := 0
		if got.truncated {
			fewer = soakDrafted
		}
		err = soak.Follows(want.logprobs, got.text, p.bound, fewer)
	case p.bound == 0:
		err = soak.Same(want.logprobs, got.logprobs)
	default:
		_, err = soak.Within(want.logprobs, got.logprobs, p.bound)
	}
	return err
}

// body is a request for an answer to a prompt.
func body(prompt any, n int, stream bool) map[string]any {
	return map[string]any{"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "n_probs": 10, "stream": stream}
}

// ask sends a request of body.
func ask(s *server, in map[string]any) said {
	status, text := s.tryPost("/completion", in)
	if status != http.StatusOK {
		return said{status: status, text: string(text)}
	}
	var a struct {
		Content       string
		Truncated     bool
		Probabilities []struct {
			Token   string
			Logprob float64
			Top     []api.TokenLogprob `json:"top_logprobs"`
		} `json:"completion_probabilities"`
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return said{text: err.Error()}
	}
	out := said{status: status, text: a.Content, truncated: a.Truncated}
	for _, l := range a.Probabilities {
		out.logprobs = append(out.logprobs, api.Logprob{TokenLogprob: api.TokenLogprob{Token: l.Token, Logprob: l.Logprob}, TopLogprobs: l.Top})
	}
	return out
}

// leave asks, and goes away after some tokens of the answer.
func (p *play) leave(s *server, prompt string, n, after int) {
	p.watch(s, prompt, n, func(tokens int) bool { return tokens < after })
}

// watch asks, and calls more with the number of tokens that came, until it returns false or
// the answer ends.
func (p *play) watch(s *server, prompt string, n int, more func(tokens int) bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := s.Post(ctx, "/completion", body(prompt, n, true))
	if err != nil {
		return // it was killed, or refuses the prompt
	}
	defer stream.Close()
	tokens := 0
	for lines := bufio.NewScanner(stream); more(tokens) && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			tokens++
		}
	}
}

// crash makes the requests of a round, and kills all processes when the first answer has some
// tokens.
func (p *play) crash(round soak.Round, prompts []string) {
	reached := make(chan struct{})
	reach := sync.OnceFunc(func() { close(reached) })
	over := make(chan struct{})
	go func() {
		defer close(over)
		p.all(round, func(i int, r soak.Request) said {
			p.watch(p.ours, prompts[i], r.Answer, func(tokens int) bool {
				if i == 0 && tokens >= round.CrashAfter {
					reach()
				}
				return true
			})
			if i == 0 {
				reach()
			}
			return said{}
		})
	}()
	<-reached
	p.ours.killAll()
	<-over
	p.forgive()
	p.ours = start(p.t, p.options)
}
