package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Alone is a llama-server without an Ollama, behind kvtier serve.
type Alone struct {
	File   string   // the model's GGUF file
	Window int      // tokens of the model's longest context; 0: unknown
	Serve  []string // kvtier serve -- llama-server: Start adds the model and the address

	url    string
	cmd    *exec.Cmd
	output tail
	ended  chan struct{}
}

const (
	readyEvery = 50 * time.Millisecond
	readyMax   = 10 * time.Minute // a large model, read from a slow disk
	endMax     = time.Minute      // the slot is stored before the end
)

// Start starts the llama-server, and waits until it has loaded the model.
func (s *Alone) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a port for llama-server: %w", err)
	}
	address := listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(address) // an address of net has one
	_, window := s.model()
	s.url = "http://" + address
	cmd := exec.Command(s.Serve[0], slices.Concat(s.Serve[1:], []string{"-m", s.File, "--host", "127.0.0.1", "--port", port, "-c", strconv.Itoa(window), "-np", "1"})...)
	cmd.Args[0] = "kvtier" // a kvtier that is called llama-server is one
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start llama-server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ready tells of an end that comes too soon
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	return s.ready(ctx)
}

func (s *Alone) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/health", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.ended:
			return fmt.Errorf("llama-server ended before it had loaded %s; its output ends:\n%s", s.File, s.output.String())
		case <-ctx.Done():
			return fmt.Errorf("wait for llama-server to load %s: %w; its output ends:\n%s", s.File, ctx.Err(), s.output.String())
		case <-time.After(readyEvery):
		}
	}
}

// Close kills the llama-server as Ollama does, and waits until its slot is stored.
func (s *Alone) Close() error {
	if s.ended == nil {
		return nil
	}
	_ = s.cmd.Process.Kill() // it may have ended
	select {
	case <-s.ended:
		return nil
	case <-time.After(endMax):
		return fmt.Errorf("llama-server was killed and has not ended for %v; its output ends:\n%s", endMax, s.output.String())
	}
}

func (s *Alone) model() (string, int) {
	window := windowMax
	if s.Window > 0 {
		window = min(window, s.Window)
	}
	return strings.TrimSuffix(filepath.Base(s.File), ".gguf"), window
}

func (s *Alone) forgotten() string { return Killed }

func (s *Alone) forget(ctx context.Context) error {
	if err := s.Close(); err != nil {
		return err
	}
	return s.Start(ctx)
}

// ask asks in a chat of one message, and measures.
func (s *Alone) ask(ctx context.Context, question string, length int) (a Answer, err error) {
	body, err := json.Marshal(map[string]any{
		"messages": []map[string]string{{"role": "user", "content": question}}, "stream": true,
		"temperature": 0, "seed": 1, "max_tokens": length,
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, fmt.Errorf("ask llama-server: %w; its output ends:\n%s", err, s.output.String())
	}
	if err := refused(res, "llama-server"); err != nil {
		return a, err
	}
	err = a.read(res.Body, "llama-server", began, a.chunk)
	return a, err
}

// chunk reads a line of a stream of server-sent events.
func (a *Answer) chunk(line []byte) (said string, done bool, err error) {
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok {
		return "", false, nil // between events, or a comment
	}
	if string(data) == "[DONE]" {
		return "", true, nil
	}
	var event struct {
		Choices []struct {
			Delta struct {
				Content  string
				Thinking string `json:"reasoning_content"`
			}
		}
		Timings *struct {
			Cached   int `json:"cache_n"`
			Computed int `json:"prompt_n"`
		}
		Error *struct{ Message string }
	}
	err = json.Unmarshal(data, &event)
	if event.Error != nil {
		err = errors.New(event.Error.Message)
	}
	for _, c := range event.Choices {
		said += c.Delta.Thinking + c.Delta.Content
	}
	if t := event.Timings; t != nil {
		a.Tokens, a.Reused = t.Cached+t.Computed, &t.Cached
	}
	return said, false, err
}

// tailMax bounds a tail, in bytes.
const tailMax = 2 << 10

type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailMax):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
