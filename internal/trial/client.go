package trial

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ollama/ollama/types/model"
)

// Bounds of answers.
const (
	lineMax = 1 << 20 // bytes of an event
	bodyMax = 8 << 20 // bytes of a list
)

// Install is the line that installs Ollama.
const Install = "curl -fsSL https://ollama.com/install.sh | sh"

// Client talks to an Ollama.
type Client struct {
	URL  string // without a slash at the end
	HTTP *http.Client
}

// call sends a request, a GET without a value to send, and has the answer read.
func (c Client) call(ctx context.Context, path string, in any, read func(io.Reader) error) error {
	method, body := http.MethodGet, new(bytes.Buffer)
	if in != nil {
		method = http.MethodPost
		if err := json.NewEncoder(body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, body)
	if err != nil {
		return err
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("no Ollama answers at %s: %w; start it (ollama serve), name another one in OLLAMA_HOST, or install it: %s", c.URL, err, Install)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return read(res.Body)
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // it only explains the status
	var said struct{ Error string }
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		text = []byte(said.Error)
	}
	return fmt.Errorf("ask Ollama for %s: %s: %s", req.URL.Path, res.Status, bytes.TrimSpace(text))
}

// value reads an answer that is one value.
func value(out any) func(io.Reader) error {
	return func(body io.Reader) error { return json.NewDecoder(io.LimitReader(body, bodyMax)).Decode(out) }
}

// models returns names at a path that lists models, the smallest first.
func (c Client) models(ctx context.Context, path string) (names []string, err error) {
	type listed struct {
		Name string
		Size int64
		Host string `json:"remote_host"` // of a model that runs elsewhere
	}
	var list struct{ Models []listed }
	if err := c.call(ctx, path, nil, value(&list)); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Models, func(a, b listed) int { return cmp.Compare(a.Size, b.Size) })
	for _, m := range list.Models {
		if m.Host == "" {
			names = append(names, m.Name)
		}
	}
	return names, nil
}

// smallest is the smallest model that answers.
func (c Client) smallest(ctx context.Context) (string, error) {
	names, err := c.models(ctx, "/api/tags")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if m, err := c.show(ctx, name); err == nil && m.completes {
			return name, nil
		}
	}
	return "", errors.New("Ollama has no model to ask; get one: ollama pull smollm2:135m")
}

// shown is what Ollama says of a model.
type shown struct {
	completes bool
	context   int // tokens; 0: unknown
}

func (c Client) show(ctx context.Context, name string) (shown, error) {
	var out struct {
		Capabilities []string
		Host         string         `json:"remote_host"`
		Info         map[string]any `json:"model_info"`
	}
	if err := c.call(ctx, "/api/show", map[string]string{"model": name}, value(&out)); err != nil {
		return shown{}, err
	}
	if out.Host != "" {
		return shown{}, fmt.Errorf("%s runs at %s, not here; name a model that you have pulled", name, out.Host)
	}
	m := shown{completes: out.Capabilities == nil || slices.Contains(out.Capabilities, "completion")}
	for key, value := range out.Info {
		if n, ok := value.(float64); ok && strings.HasSuffix(key, ".context_length") {
			m.context = int(n)
		}
	}
	return m, nil
}

// Answer is one answer.
type Answer struct {
	Tokens int     `json:"prompt_tokens"`
	Reused *int    `json:"reused"`         // tokens that were not computed; null where Ollama does not say (before v0.34)
	First  float64 `json:"first_token_s"`  // without loading the model
	Same   bool    `json:"same_as_before"` // the text is that of an answer before
	text   string
}

// ask asks in a chat of one message, and measures.
func (c Client) ask(ctx context.Context, name, question string, window, length int) (a Answer, err error) {
	began := time.Now()
	err = c.call(ctx, "/api/chat", map[string]any{
		"model": name, "keep_alive": "10m", "messages": []map[string]string{{"role": "user", "content": question}},
		"options": map[string]any{"temperature": 0, "seed": 1, "num_ctx": window, "num_predict": length},
	}, func(body io.Reader) error { return a.read(body, began) })
	return a, err
}

// read reads the events of an answer to a question that began to be asked at a time.
func (a *Answer) read(body io.Reader, began time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, lineMax)
	var first time.Duration
	for lines.Scan() {
		var event struct {
			Message struct{ Content, Thinking string }
			Done    bool
			Error   string
			Load    time.Duration `json:"load_duration"`
			Tokens  int           `json:"prompt_eval_count"`
			Cached  *int          `json:"prompt_eval_cached_count"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("read Ollama's answer: %w", err)
		}
		if event.Error != "" {
			return fmt.Errorf("Ollama's answer broke off: %s", event.Error)
		}
		said := event.Message.Thinking + event.Message.Content
		if first == 0 && (said != "" || event.Done) {
			first = time.Since(began)
		}
		if a.text += said; event.Done {
			a.Tokens, a.Reused, a.First = event.Tokens, event.Cached, max(0, first-event.Load).Seconds()
			return nil
		}
	}
	return fmt.Errorf("Ollama's answer broke off: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// Waits for an unload.
const (
	unloadEvery = 50 * time.Millisecond
	unloadMax   = time.Minute
)

// unload unloads a model and waits until it is gone.
func (c Client) unload(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, unloadMax)
	defer cancel()
	if err := c.call(ctx, "/api/generate", map[string]any{"model": name, "keep_alive": 0}, value(&struct{}{})); err != nil {
		return err
	}
	same := func(loaded string) bool { return model.ParseName(loaded).EqualFold(model.ParseName(name)) } // tags may be left out
	for {
		loaded, err := c.models(ctx, "/api/ps")
		if err != nil || !slices.ContainsFunc(loaded, same) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not unloaded: %w; another client may use it", name, ctx.Err())
		case <-time.After(unloadEvery):
		}
	}
}
