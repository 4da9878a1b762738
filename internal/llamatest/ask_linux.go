package llamatest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Answer is the end of an answer to /completion, with its times by the client's clock.
type Answer struct {
	Tokens  []int32 // of the answer
	Text    string
	First   time.Duration
	Total   time.Duration
	Gaps    []time.Duration // between the events of the stream, in order
	Timings struct {
		Cached    int `json:"cache_n"`
		Computed  int `json:"prompt_n"`
		Generated int `json:"predicted_n"`
		Drafted   int `json:"draft_n"`
		Accepted  int `json:"draft_n_accepted"`
	}
}

// Message is a message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Post sends a request, and returns the answer's body, which the caller closes.
func (s *Server) Post(ctx context.Context, path string, in any) (io.ReadCloser, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := Client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // it only explains the status
		return nil, fmt.Errorf("%s: %s: %s", path, res.Status, text)
	}
	return res.Body, nil
}

// Complete asks for at most n greedy tokens after a prompt, a text or a list of tokens, and
// reads the stream.
func (s *Server) Complete(ctx context.Context, prompt any, n int) (a Answer, err error) {
	began := time.Now()
	body, err := s.Post(ctx, "/completion", map[string]any{
		"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "stream": true, "return_tokens": true, "ignore_eos": true,
	})
	if err != nil {
		return a, err
	}
	defer body.Close()
	lines, last := bufio.NewReader(body), time.Duration(0)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
			var event struct {
				Tokens  []int32         `json:"tokens"`
				Content string          `json:"content"`
				Stop    bool            `json:"stop"`
				Timings json.RawMessage `json:"timings"`
			}
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				return a, fmt.Errorf("an event that is no JSON: %q: %w", data, err)
			}
			now := time.Since(began)
			if a.First == 0 {
				a.First = now
			} else {
				a.Gaps = append(a.Gaps, now-last)
			}
			last = now
			a.Text += event.Content
			if a.Tokens = append(a.Tokens, event.Tokens...); event.Stop {
				a.Total = time.Since(began)
				return a, json.Unmarshal(event.Timings, &a.Timings)
			}
		}
		if err != nil {
			return a, fmt.Errorf("the stream broke off: %w", err)
		}
	}
}

// Prompt returns the text that the server makes of a chat.
func (s *Server) Prompt(ctx context.Context, chat []Message) (string, error) {
	body, err := s.Post(ctx, "/apply-template", map[string]any{"messages": chat})
	if err != nil {
		return "", err
	}
	defer body.Close()
	var out struct{ Prompt string }
	err = json.NewDecoder(body).Decode(&out)
	return out.Prompt, err
}

// Slot saves, restores or erases slot 0, as llama-server does it by itself.
func (s *Server) Slot(ctx context.Context, action, file string) error {
	body, err := s.Post(ctx, "/slots/0?action="+action, map[string]string{"filename": file})
	if err != nil {
		return err
	}
	return body.Close()
}
