package trial

import (
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

// Install is the line that installs Ollama.
const Install = "curl -fsSL https://ollama.com/install.sh | sh"

// bodyMax bounds a list of models, in bytes.
const bodyMax = 8 << 20

// Ollama is an Ollama that runs.
type Ollama struct {
	URL  string // without a slash at the end
	HTTP *http.Client

	name   string // of the model
	window int    // tokens of its context
}

// Choose chooses the model that is asked, "" for the smallest one that Ollama has.
func (o *Ollama) Choose(ctx context.Context, name string) (err error) {
	if o.name = name; name == "" {
		if o.name, err = o.smallest(ctx); err != nil {
			return err
		}
	}
	m, err := o.show(ctx, o.name)
	o.window = min(windowMax, cmp.Or(m.context, windowMax))
	return err
}

// Loaded returns the models in memory: a trial would unload them, or make room.
func (o *Ollama) Loaded(ctx context.Context) ([]string, error) { return o.models(ctx, "/api/ps") }

func (o *Ollama) model() (string, int) { return o.name, o.window }
func (o *Ollama) forgotten() string    { return Unloaded }

// post sends a request. The caller closes the answer's body.
func (o *Ollama) post(ctx context.Context, path string, in any) (io.ReadCloser, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return o.do(req)
}

func (o *Ollama) do(req *http.Request) (io.ReadCloser, error) {
	res, err := o.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no Ollama answers at %s: %w; start it (OLLAMA_KV_TIERING=1 ollama serve), name another one in OLLAMA_HOST, install it (%s), or name a GGUF file for a llama-server alone", o.URL, err, Install)
	}
	if err := refused(res, "Ollama"); err != nil {
		return nil, err
	}
	return res.Body, nil
}

// refused is the error of an answer that is none, whose body it closes.
func refused(res *http.Response, server string) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // it only explains the status
	var said struct{ Error string }
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		text = []byte(said.Error)
	}
	cure := ""
	if res.Request.URL.Path == "/api/show" && res.StatusCode == http.StatusNotFound {
		cure = "; ollama list shows the models that you have"
	}
	return fmt.Errorf("ask %s for %s: %s: %s%s", server, res.Request.URL.Path, res.Status, bytes.TrimSpace(text), cure)
}

func (o *Ollama) read(body io.ReadCloser, err error, out any) error {
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, bodyMax)).Decode(out)
}

// models returns names at a path that lists models, the smallest first.
func (o *Ollama) models(ctx context.Context, path string) (names []string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL+path, nil)
	if err != nil {
		return nil, err
	}
	body, err := o.do(req)
	type listed struct {
		Name string
		Size int64
		Host string `json:"remote_host"` // of a model that runs elsewhere
	}
	var list struct{ Models []listed }
	if err := o.read(body, err, &list); err != nil {
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
func (o *Ollama) smallest(ctx context.Context) (string, error) {
	names, err := o.models(ctx, "/api/tags")
	if err != nil {
		return "", err
	}
	none := errors.New("Ollama has no model to ask; get one: ollama pull smollm2:135m")
	for _, name := range names {
		m, err := o.show(ctx, name)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil:
			none = err // another model may answer
		case m.completes:
			return name, nil
		}
	}
	return "", none
}

type shown struct {
	completes bool
	context   int // tokens; 0: unknown
}

func (o *Ollama) show(ctx context.Context, name string) (shown, error) {
	body, err := o.post(ctx, "/api/show", map[string]string{"model": name})
	var out struct {
		Capabilities []string
		Host         string         `json:"remote_host"`
		Info         map[string]any `json:"model_info"`
	}
	if err := o.read(body, err, &out); err != nil {
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

// ask asks in a chat of one message, and measures, without loading the model.
func (o *Ollama) ask(ctx context.Context, question string, length int) (a Answer, err error) {
	began := time.Now()
	body, err := o.post(ctx, "/api/chat", map[string]any{
		"model": o.name, "keep_alive": "10m", "messages": []map[string]string{{"role": "user", "content": question}},
		"options": map[string]any{"temperature": 0, "seed": 1, "num_ctx": o.window, "num_predict": length},
	})
	if err != nil {
		return a, err
	}
	err = a.read(body, "Ollama", began, func(line []byte) (said string, done bool, err error) {
		var event struct {
			Message struct{ Content, Thinking string }
			Done    bool
			Error   string
			Load    time.Duration `json:"load_duration"`
			Tokens  int           `json:"prompt_eval_count"`
			Cached  *int          `json:"prompt_eval_cached_count"`
		}
		err = json.Unmarshal(line, &event)
		if event.Error != "" {
			err = errors.New(event.Error)
		}
		if event.Done {
			a.Tokens, a.Reused, a.load = event.Tokens, event.Cached, event.Load
		}
		return event.Message.Thinking + event.Message.Content, event.Done, err
	})
	return a, err
}

// sameModel reports whether two names are those of one model; tags and registries may be left out.
func sameModel(a, b string) bool { return model.ParseName(a).EqualFold(model.ParseName(b)) }

const (
	unloadEvery = 50 * time.Millisecond
	unloadMax   = time.Minute
)

// Close unloads the model.
func (o *Ollama) Close() error { return o.forget(context.Background()) }

// forget unloads the model, and waits until it is gone.
func (o *Ollama) forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, unloadMax)
	defer cancel()
	body, err := o.post(ctx, "/api/generate", map[string]any{"model": o.name, "keep_alive": 0})
	if err := o.read(body, err, &struct{}{}); err != nil {
		return err
	}
	for {
		loaded, err := o.Loaded(ctx)
		if err != nil || !slices.ContainsFunc(loaded, func(one string) bool { return sameModel(one, o.name) }) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not unloaded: %w; another client may use it", o.name, ctx.Err())
		case <-time.After(unloadEvery):
		}
	}
}
