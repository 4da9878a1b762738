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

// post sends a request. The caller closes the answer's body.
func (c Client) post(ctx context.Context, path string, in any) (io.ReadCloser, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.do(req)
}

func (c Client) do(req *http.Request) (io.ReadCloser, error) {
	res, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no Ollama answers at %s: %w; start it (ollama serve), name another one in OLLAMA_HOST, or install it: %s", c.URL, err, Install)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // it only explains the status
	var said struct{ Error string }
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		text = []byte(said.Error)
	}
	return nil, fmt.Errorf("ask Ollama for %s: %s: %s", req.URL.Path, res.Status, bytes.TrimSpace(text))
}

// read reads an answer that is one value.
func (c Client) read(body io.ReadCloser, err error, out any) error {
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, bodyMax)).Decode(out)
}

// models returns names at a path that lists models, the smallest first.
func (c Client) models(ctx context.Context, path string) (names []string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return nil, err
	}
	body, err := c.do(req)
	type listed struct {
		Name string
		Size int64
		Host string `json:"remote_host"` // of a model that runs elsewhere
	}
	var list struct{ Models []listed }
	if err := c.read(body, err, &list); err != nil {
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
	body, err := c.post(ctx, "/api/show", map[string]string{"model": name})
	var out struct {
		Capabilities []string
		Host         string         `json:"remote_host"`
		Info         map[string]any `json:"model_info"`
	}
	if err := c.read(body, err, &out); err != nil {
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
	body, err := c.post(ctx, "/api/chat", map[string]any{
		"model": name, "keep_alive": "10m", "messages": []map[string]string{{"role": "user", "content": question}},
		"options": map[string]any{"temperature": 0, "seed": 1, "num_ctx": window, "num_predict": length},
	})
	if err != nil {
		return a, err
	}
	defer body.Close()
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
			return a, fmt.Errorf("read Ollama's answer: %w", err)
		}
		if event.Error != "" {
			return a, fmt.Errorf("Ollama's answer broke off: %s", event.Error)
		}
		said := event.Message.Thinking + event.Message.Content
		if first == 0 && (said != "" || event.Done) {
			first = time.Since(began)
		}
		if a.text += said; event.Done {
			a.Tokens, a.Reused, a.First = event.Tokens, event.Cached, max(0, first-event.Load).Seconds()
			return a, nil
		}
	}
	return a, fmt.Errorf("Ollama's answer broke off: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// sameModel reports whether two names are those of one model; tags and registries may be left out.
func sameModel(a, b string) bool { return model.ParseName(a).EqualFold(model.ParseName(b)) }

// Waits for an unload.
const (
	unloadEvery = 50 * time.Millisecond
	unloadMax   = time.Minute
)

// unload unloads a model and waits until it is gone.
func (c Client) unload(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, unloadMax)
	defer cancel()
	body, err := c.post(ctx, "/api/generate", map[string]any{"model": name, "keep_alive": 0})
	if err := c.read(body, err, &struct{}{}); err != nil {
		return err
	}
	for {
		loaded, err := c.models(ctx, "/api/ps")
		if err != nil || !slices.ContainsFunc(loaded, func(one string) bool { return sameModel(one, name) }) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not unloaded: %w; another client may use it", name, ctx.Err())
		case <-time.After(unloadEvery):
		}
	}
}
