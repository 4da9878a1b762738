package llamatier

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Progress says how far the engine is with a prompt.
type Progress struct {
	Header    http.Header // of the engine's answer
	Cached    int         // tokens that the slot held before
	Processed int         // these, and those that are computed
	Took      time.Duration
}

// Listener hears how far the engine is with the first parts of a prompt: when one begins, and after each
// batch.
type Listener struct {
	Origin string // of the request, which the header of the engine's answer names; "" without
	Hear   func(Progress)
}

// after is the listener of a step behind others, whose account may be nil.
func (l Listener) after(before *Answer) Listener {
	if hear := l.Hear; hear != nil && before != nil {
		l.Hear = func(p Progress) {
			p.Cached, p.Took = before.Cached, before.Took+p.Took
			hear(p)
		}
	}
	return l
}

// Prefill computes a prompt in a slot and drops the answer, of which it returns the account.
func (e *Engine) Prefill(ctx context.Context, slot int, tokens []int32, l Listener) (*Answer, error) {
	body, err := json.Marshal(map[string]any{
		"prompt": tokens, "n_predict": 0, "id_slot": slot, "cache_prompt": true, "temperature": 0,
		"stream": true, "return_progress": true,
	})
	if err != nil {
		return nil, fmt.Errorf("ask llama-server for a prompt: %w", err)
	}
	header := e.header()
	if l.Origin != "" {
		header.Set("Origin", l.Origin)
	}
	res, err := e.open(ctx, http.MethodPost, "/completion", body, header)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var answer *Answer
	for events := bufio.NewReader(io.LimitReader(res.Body, answerMax)); ; {
		event, err := events.ReadBytes('\n')
		if p := readProgress(event); p != nil && l.Hear != nil {
			p.Header = res.Header
			l.Hear(*p)
		}
		if last := ReadAnswer(event); last != nil {
			answer = last
		}
		switch {
		case errors.Is(err, io.EOF) && answer == nil:
			return nil, errors.New("llama-server does not say how much it computed")
		case errors.Is(err, io.EOF):
			return answer, nil
		case err != nil:
			return nil, fmt.Errorf("read llama-server's answer to a prompt: %w", err)
		}
	}
}

// readProgress finds the progress in an event of a stream; nil if there is none.
func readProgress(event []byte) *Progress {
	data, found := bytes.CutPrefix(event, []byte("data: "))
	var in struct {
		Progress *struct {
			Cache     int   `json:"cache"`
			Processed int   `json:"processed"`
			Millis    int64 `json:"time_ms"`
		} `json:"prompt_progress"`
	}
	if !found || json.Unmarshal(data, &in) != nil || in.Progress == nil {
		return nil
	}
	return &Progress{Cached: in.Progress.Cache, Processed: in.Progress.Processed, Took: time.Duration(in.Progress.Millis) * time.Millisecond}
}
