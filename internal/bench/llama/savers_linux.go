package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Lengths of savers, in tokens.
const (
	saversFirst  = 4096
	saversTurn   = 220
	saversAnswer = 20
	saversTurns  = 6
)

// savedIn is the time in which each side has saved a slot behind an answer.
const savedIn = 3 * time.Second

// Sides of savers: the programs from PyPI that save whole slots of a llama-server.
const (
	never     side = "never killed"
	hearth    side = "hearth-llm"
	stillwarm side = "stillwarm"
)

// savers is one chat, whose server is killed after each answer. Each prompt comes after a pause, and for a killed
// server that is the time since it was up.
type savers struct {
	Pause     float64 `json:"pause" unit:"s"`
	Turns     int     `json:"turns"`
	Never     saver   `json:"never_killed"`
	Stock     saver   `json:"stock"`
	Ours      saver   `json:"ours"`
	Hearth    saver   `json:"hearth_llm"`
	Stillwarm saver   `json:"stillwarm"`
}

// saver is one side.
type saver struct {
	Answers measure.Series `json:"answers" unit:"s"` // all answers but the first, without the server's start
	Ratio   measure.Series `json:"of_never_killed"`  // of their time
	Again   int            `json:"computed"`         // tokens of their prompts
	Written float64        `json:"written"`          // bytes to the disk, for each new byte of K and V
}

// measureSavers has the sides take turns.
func (b *bench) measureSavers(ctx context.Context) (any, error) {
	r := &savers{Pause: b.pause.Seconds(), Turns: saversTurns}
	sides := []struct {
		side side
		into *saver
	}{{never, &r.Never}, {stock, &r.Stock}, {ours, &r.Ours}, {hearth, &r.Hearth}, {stillwarm, &r.Stillwarm}}
	for n := range b.repetitions {
		for _, s := range sides {
			if err := b.Step(fmt.Sprintf("savers, %s, %d of %d", s.side, n+1, b.repetitions), func() (string, error) {
				took, err := b.saverChat(ctx, s.side, int64(n), s.into)
				s.into.Answers.AddSeconds(took)
				s.into.Ratio.Add(took.Seconds() / r.Never.Answers.Values[n])
				return fmt.Sprintf("%.2f of the time of a server that is never killed", s.into.Ratio.Values[n]), err
			}); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// spoken is an answer, with its time.
type spoken struct {
	Text             string
	Seconds          float64
	Computed, Cached int
}

// saverChat holds a chat, and returns the time of all answers but the first.
func (b *bench) saverChat(ctx context.Context, s side, seed int64, into *saver) (all time.Duration, err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	if err := os.MkdirAll(b.files(), 0o700); err != nil {
		return 0, err
	}
	var chat []llamatest.Message
	into.Again = 0
	tokens := 0
	say := func(server *llamatest.Server, turn int) error {
		more := saversTurn
		if turn == 0 {
			more = saversFirst
		}
		text, err := testmodel.Prompt(b.shape, more, 1000*seed+int64(turn))
		if err != nil {
			return err
		}
		chat = append(chat, llamatest.Message{Role: "user", Content: text})
		a, err := b.speak(ctx, s, server, chat)
		if err != nil {
			return err
		}
		if tokens = a.Cached + a.Computed + saversAnswer; turn > 0 {
			all += time.Duration(a.Seconds * float64(time.Second))
			into.Again += a.Computed
		}
		chat = append(chat, llamatest.Message{Role: "assistant", Content: a.Text})
		return nil
	}
	m := served{tokens: saversFirst + saversTurns*(saversTurn+saversAnswer+50)}
	serving, starts, turns := s, saversTurns, 1
	switch s {
	case never:
		serving, starts, turns = stock, turns, starts
	case hearth, stillwarm:
		serving = whole
	}
	written := b.newFiles()
	for start := range starts {
		err := b.on(ctx, serving, m, func(server *llamatest.Server) (err error) {
			for turn := 0; turn < turns && err == nil; turn++ {
				<-time.After(b.pause)
				err = say(server, start+turn)
			}
			if s != never {
				<-time.After(savedIn)
			}
			return err
		})
		if err == nil {
			err = written.look(s == stillwarm) // which writes over its file
		}
		if err != nil {
			return 0, err
		}
	}
	into.Written = float64(written.bytes) / float64(int64(tokens)*b.shape.KVBytesPerToken())
	return all, nil
}

// speak has a side answer a chat.
func (b *bench) speak(ctx context.Context, s side, server *llamatest.Server, chat []llamatest.Message) (a spoken, err error) {
	in := map[string]any{"messages": chat, "max_tokens": saversAnswer, "temperature": 0, "ignore_eos": true}
	switch s {
	case stillwarm:
		return b.speakStillwarm(ctx, server, chat)
	case hearth:
		proxy, url, err := b.startHearth(ctx, server)
		if err != nil {
			return a, err
		}
		defer func() { _ = proxy.Wait() }() // it was killed
		defer func() { _ = proxy.Process.Kill() }()
		defer func() { <-time.After(savedIn) }() // it saves behind the answer
		server = &llamatest.Server{URL: url}
	}
	began := time.Now()
	body, err := server.Post(ctx, "/v1/chat/completions", in)
	if err != nil {
		return a, err
	}
	defer body.Close()
	var out struct {
		Choices []struct{ Message struct{ Content string } }
		Timings struct {
			Cached   int `json:"cache_n"`
			Computed int `json:"prompt_n"`
		}
	}
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return a, err
	}
	if len(out.Choices) == 0 {
		return a, errors.New("there is no answer")
	}
	return spoken{out.Choices[0].Message.Content, time.Since(began).Seconds(), out.Timings.Computed, out.Timings.Cached}, nil
}

// python is a command of Python with the packages of scripts/llama-clients.
func (b *bench) python(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(b.checkout, "build", "llama-clients"), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	cmd.Stderr = os.Stderr
	return cmd
}

// startHearth starts hearth before a server.
func (b *bench) startHearth(ctx context.Context, server *llamatest.Server) (*exec.Cmd, string, error) {
	port, err := llamatest.FreePort()
	if err != nil {
		return nil, "", err
	}
	cmd := b.python(ctx, "-m", "hearth", "serve", "--upstream", server.URL, "--port", strconv.Itoa(port), "--cache-dir", b.files())
	cmd.Stderr = nil
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for end := time.Now().Add(time.Minute); ; {
		res, err := http.Get(url + "/v1/models")
		if err == nil {
			return cmd, url, res.Body.Close()
		}
		if time.Now().After(end) {
			return nil, "", errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
		<-time.After(50 * time.Millisecond)
	}
}

// speakStillwarm has stillwarm answer the text that a server makes of a chat.
func (b *bench) speakStillwarm(ctx context.Context, server *llamatest.Server, chat []llamatest.Message) (a spoken, err error) {
	prompt, err := server.Prompt(ctx, chat)
	if err != nil {
		return a, err
	}
	path := filepath.Join(b.dir, "prompt.txt")
	if err := os.WriteFile(path, []byte(prompt), 0o600); err != nil {
		return a, err
	}
	script := filepath.Join(b.checkout, "internal", "bench", "llama", "saver.py")
	said, err := b.python(ctx, script, server.URL, b.files(), path, strconv.Itoa(saversAnswer)).Output()
	if err != nil {
		return a, fmt.Errorf("run stillwarm (scripts/llama-clients installs it): %w", err)
	}
	return a, json.Unmarshal(said, &a)
}
