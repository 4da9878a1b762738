package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

const (
	readLimit  = 3 * time.Second        // of one read, and of the wait for it
	stateFresh = 500 * time.Millisecond // for which an answer serves everybody
)

// reader reads the state for all clients: one read at a time, however many pages are open.
type reader struct {
	read  func(context.Context) (telemetry.State, error)
	limit time.Duration
	fresh time.Duration

	// turn holds a value while a read runs. The fields below belong to the goroutine whose read runs.
	turn chan struct{}
	body []byte
	at   time.Time
}

// Errors that the page shows. An error of a collector names paths, which the page does not.
var (
	errNoAnswer   = errors.New("The collector does not answer. kvtier doctor looks for the cause.")
	errUnreadable = errors.New("The collector's state could not be read. kvtier doctor looks for the cause.")
)

// serve answers with the state as JSON, or with 503 and {"error": reason}.
func (s *reader) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limit)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	body, err := s.state(ctx)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		body, _ = json.Marshal(map[string]string{"error": err.Error()}) // strings are JSON
	}
	_, _ = w.Write(body) // an error means that the client has gone
}

// state returns the state as JSON, of at most s.fresh ago. A read that ignores its context
// keeps the turn, so that reads never pile up; state then fails when ctx ends.
func (s *reader) state(ctx context.Context) ([]byte, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, errNoAnswer
	}
	type answer struct {
		body []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-s.turn }()
		body, err := s.update(ctx)
		done <- answer{body, err}
	}()
	select {
	case a := <-done:
		return a.body, a.err
	case <-ctx.Done():
		return nil, errNoAnswer
	}
}

// update is called by the one who has the turn.
func (s *reader) update(ctx context.Context) ([]byte, error) {
	if s.body != nil && time.Since(s.at) < s.fresh {
		return s.body, nil
	}
	state, err := s.read(ctx)
	if err != nil {
		return nil, errUnreadable
	}
	body, err := json.Marshal(state.WithWords(nil))
	if err != nil {
		return nil, fmt.Errorf("write the state of the KV tier as JSON: %w", err)
	}
	s.body, s.at = body, time.Now()
	return body, nil
}
