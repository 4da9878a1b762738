package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/ollama/ollama/api"

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
