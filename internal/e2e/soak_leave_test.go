package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
)

// leave is a client that disconnects after `after` tokens of an answer, or as soon as its
// request is sent.
func (p *soakPlay) leave(a asked, after int) error {
	if after == 0 {
		return p.leaveAtOnce(a)
	}
	return p.leaveDuring(a, after)
}

// leaveAtOnce asks for the answer in one piece; see leaveDuring.
func (p *soakPlay) leaveAtOnce(a asked) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	request := p.raw(a.messages, p.prompt(a), a.Answer)
	request.Stream = new(bool)
	err := p.tiered.API().Generate(sent(ctx, cancel), &request, func(api.GenerateResponse) error { return nil })
	if ctx.Err() == context.Canceled {
		return nil
	}
	return err
}

// leaveDuring sends its request to the runner, as the server does for a client. A client
// cannot safely disconnect from a server that sends tokens quickly: the server stops reading
// the results of its own request to the runner, and that request then waits forever to pass
// on the next token and keeps its place in the queue (upstream's ChatHandler and
// llmServer.Completion, in v0.16.1).
func (p *soakPlay) leaveDuring(a asked, after int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// without a prompt, a request only loads the model
	load := ollamatest.Request{Model: p.arch, Options: p.options(a.Answer), KeepAlive: p.raw(nil, "", 0).KeepAlive}
	if err := p.tiered.API().Generate(ctx, &load, func(api.GenerateResponse) error { return nil }); err != nil {
		return fmt.Errorf("loading the model: %w", err)
	}
	body, err := p.completion(a)
	if err != nil {
		return err
	}
	runner, err := p.tiered.RunnerURLOf(ctx, p.arch)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, runner.JoinPath("completion").String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the runner: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("asking the runner: %s: %s", response.Status, text)
	}
	for decoder := json.NewDecoder(response.Body); after > 0; after-- {
		switch err := decoder.Decode(new(json.RawMessage)); {
		case err == io.EOF:
			return nil // the answer ended with the context
		case err != nil:
			return fmt.Errorf("reading the runner's answer: %w", err)
		}
	}
	return nil // the deferred Close disconnects before the end of the answer
}

// completion is the request that the server sends to the runner for a client's request.
func (p *soakPlay) completion(a asked) ([]byte, error) {
	options := api.DefaultOptions()
	changed, err := json.Marshal(p.options(a.Answer))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(changed, &options); err != nil {
		return nil, err
	}
	type imageData struct {
		Data []byte `json:"data"`
		ID   int    `json:"id"`
	}
	var images []imageData
	for i, data := range p.images(a.messages) {
		images = append(images, imageData{Data: data, ID: i})
	}
	return json.Marshal(map[string]any{
		"Prompt": p.prompt(a), "Images": images, "Options": options, "Shift": p.shift, "Truncate": true,
	})
}

// prompt is a request as one text.
func (p *soakPlay) prompt(a asked) string {
	if a.Kind == soak.Document {
		return a.messages[0].Text
	}
	return soak.Render(a.messages)
}

// recurrent are the architectures with recurrent state.
var recurrent = []string{"lfm2", "nemotron_h", "qwen35", "qwen3next"}

// countRestored counts the requests of a round with a restore, and requires one after an
// unload and after a kill with stored pages: all conversations begin with the same message,
// which is stored by then. A model with recurrent state can go on from that message only
// with the state after it.
func (p *soakPlay) countRestored(round soak.Round, mark int) {
	restored := len(restoredLine.FindAllString(p.tiered.Logs()[mark:], -1))
	p.restored += restored
	forgotten := round.Event == soak.Unload || round.Event == soak.KillStored
	chats := 0
	for _, r := range round.Requests {
		// A client that leaves before the first token may leave before the restore.
		if r.Kind != soak.Document && (r.Kind != soak.GiveUp || slices.Max(r.Leave) > 0) {
			chats++
		}
	}
	if forgotten && chats > 0 && restored == 0 && p.eager && p.isTiered() && !slices.Contains(recurrent, p.arch) {
		p.check(errors.New("nothing was restored"), "after event %q", round.Event)
	}
}

// isTiered reports whether tiering supports the model.
func (p *soakPlay) isTiered() bool { return strings.Contains(p.tiered.Logs(), "kv tier: on") }

// trouble matches log lines of a crash or a fault of the store, which fail the soak.
var trouble = regexp.MustCompile(`(?m)^(panic:|fatal error:|SIG[A-Z]+: |goroutine \d+ ).*|^.*level=(WARN|ERROR).* msg="kv .*$`)

// allowed reports lines that do not count: that the remote tier cannot take a burst of pages
// as fast as they come, with the small budget of some seeds; that a model is not tiered,
// which holds for the whole history; and that an answer gives way under a limit.
func (p *soakPlay) allowed(line string) bool {
	return p.near && strings.Contains(line, "kv room: no room for a longer context") ||
		p.embeds && strings.Contains(line, "kv pager: off for this model") || // that of embeddings
		p.remote != "" && strings.Contains(line, "kv tier: conversations are not stored") ||
		!p.isTiered() && strings.Contains(line, "kv tier: off for this model")
}

// finish ends both servers and checks their files.
func (p *soakPlay) finish() {
	require.NoError(p.t, p.tiered.Unload(p.tiered.context(), p.arch))
	if p.embeds {
		require.NoError(p.t, p.tiered.Unload(p.tiered.context(), soakEmbedder))
	}
	for name, s := range map[string]*server{"stock": p.stock, "tiered": p.tiered} {
		runners, err := s.Runners()
		require.NoError(p.t, err)
		if s == p.tiered {
			require.Empty(p.t, runners, "the runner of the unloaded model")
		}
		require.NoError(p.t, s.Stop(), name)
		for _, line := range trouble.FindAllString(s.Logs(), -1) {
			if !p.allowed(line) {
				p.check(errors.New(line), "reading the log of the %s server", name)
			}
		}
	}
	if !p.isTiered() {
		p.t.Logf("%s is not tiered", p.arch)
		return
	}
	if p.eager && len(p.history.Rounds) > pairRounds {
		require.NotZero(p.t, p.restored)
	}
	p.check(p.checkStore(), "checking the pages")
}

// checkStore checks all files below the roots: pages must be good, and other files must be
// leftovers of the last runner, which Ollama ends with SIGKILL, that a repair removes.
func (p *soakPlay) checkStore() error {
	ctx := p.tiered.context()
	root, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{
		Local: diskstore.TierConfig{Root: p.root}, Remote: diskstore.TierConfig{Root: p.remote},
	})
	if err != nil {
		return err
	}
	var roots inspect.Roots
	roots.Local, roots.Remote = root.Dirs()
	var found error
	note := func(f inspect.Finding) {
		found = errors.Join(found, fmt.Errorf("%s: %s: %s", f.Path, f.Problem, f.Why))
	}
	_, err = roots.Check(ctx, inspect.CheckOptions{Repair: true, Found: func(f inspect.Finding) {
		if f.Problem != inspect.ProblemStale {
			note(f)
		}
	}})
	if err != nil {
		return errors.Join(err, root.Close())
	}
	tiers, err := roots.Check(ctx, inspect.CheckOptions{Found: note})
	for _, tier := range tiers {
		p.t.Logf("%s: %d pages, %d tails", tier.Tier, tier.Pages, tier.Tails)
		if left := tier.Processes + tier.TempFiles + tier.Quarantined; left != 0 || tier.Err != nil {
			found = errors.Join(found, tier.Err, fmt.Errorf("%s has %d processes, %d temporary files and %d damaged ones",
				tier.Tier, tier.Processes, tier.TempFiles, tier.Quarantined))
		}
	}
	return errors.Join(err, found, root.Close())
}
