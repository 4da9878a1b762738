package search

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/ollama/ollama/types/model"
)

const (
	// positionsMax is the context that the embedding model gets, in tokens. A longer text is divided.
	positionsMax = 512

	// answerMax bounds an answer, in bytes, and answerWait the wait for one: a CPU may embed some texts a second.
	answerMax  = 64 << 20
	answerWait = 5 * time.Minute

	// keepLoaded is how long Ollama keeps the embedding model after its last text.
	keepLoaded = "1m"

	// memorySpare is what Ollama needs beside the file of an embedding model that it loads, in bytes; it
	// needs that file's size twice, at most.
	memorySpare = 512 << 20
)

// ErrTooLong reports that one of some texts has more positions than the embedding model takes.
var ErrTooLong = errors.New("text is too long for the embedding model")

// Ollama is an embedding model of an Ollama.
type Ollama struct {
	URL   string // without a slash at the end
	Model string
	Force bool // load the model even if Ollama may unload another one for it

	// LoadedMax is OLLAMA_MAX_LOADED_MODELS of the server, 0 if not known. Available is the available memory
	// of its machine in bytes; nil if not known.
	LoadedMax int
	Available func() (uint64, error)

	digest string
	size   int64
	dims   int  // of its vectors, 0 before the first
	ours   bool // it was not loaded before
}

// listed is a model in the answers of /api/tags and /api/ps.
type listed struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Open finds the model, and returns its digest.
func (o *Ollama) Open(ctx context.Context) (digest [32]byte, err error) {
	models, err := o.list(ctx, "/api/tags")
	if err != nil {
		return digest, err
	}
	want := model.ParseName(o.Model)
	for _, m := range models {
		raw, err := hex.DecodeString(m.Digest)
		if !model.ParseName(m.Name).EqualFold(want) || err != nil || len(raw) != len(digest) {
			continue
		}
		o.digest, o.size = m.Digest, m.Size
		return [32]byte(raw), nil
	}
	return digest, fmt.Errorf("the Ollama at %s has no model %q; run ollama pull %[2]s, or name an embedding model that it has as --embedder", o.URL, o.Model)
}

// Embed returns a vector of length 1 for each text. It returns ErrTooLong if one of them is too long.
func (o *Ollama) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	ask := map[string]any{"model": o.Model, "input": texts, "truncate": false, "keep_alive": keepLoaded}
	if o.ours { // a model that somebody else has loaded is used as it is: other options would load it again
		ask["options"] = map[string]any{"num_gpu": 0, "num_ctx": positionsMax}
	}
	var answer struct {
		Embeddings [][]float32 `json:"embeddings"`
	}
	if err := o.ask(ctx, http.MethodPost, "/api/embed", ask, &answer); err != nil {
		return nil, err
	}
	if len(answer.Embeddings) != len(texts) {
		return nil, fmt.Errorf("embed %d texts with %s: Ollama gave %d vectors; name another model as --embedder", len(texts), o.Model, len(answer.Embeddings))
	}
	for _, v := range answer.Embeddings {
		if o.dims == 0 {
			o.dims = len(v)
		}
		if err := o.unit(v); err != nil {
			return nil, err
		}
	}
	return answer.Embeddings, nil
}

// unit gives a vector the length 1.
func (o *Ollama) unit(v []float32) error {
	if len(v) == 0 || len(v) > dimsMax || len(v) != o.dims {
		return fmt.Errorf("embed with %s: a vector has %d numbers where %d, and at most %d, belong; name another model as --embedder", o.Model, len(v), o.dims, dimsMax)
	}
	var square float64
	for _, x := range v {
		square += float64(x) * float64(x)
	}
	if !(square > 0) || math.IsInf(square, 1) {
		return fmt.Errorf("embed with %s: a vector has no direction; name another model as --embedder", o.Model)
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(square))
	}
	return nil
}

// ready returns an error if Ollama could unload another model for this one.
func (o *Ollama) ready(ctx context.Context) error {
	loaded, err := o.list(ctx, "/api/ps")
	if err != nil {
		return err
	}
	var others []string
	for _, m := range loaded {
		if m.Digest == o.digest {
			return nil
		}
		others = append(others, m.Name)
	}
	if o.ours = true; len(others) == 0 || o.Force || len(others) < o.LoadedMax && o.fits() {
		return nil
	}
	return fmt.Errorf("the Ollama at %s has %s in memory, and may unload it for %s; run ollama stop %s, set OLLAMA_MAX_LOADED_MODELS to %d or more for the server and here, or give --force",
		o.URL, strings.Join(others, ", "), o.Model, others[0], len(others)+1)
}

// fits reports whether the model certainly fits into the machine's memory beside the others.
func (o *Ollama) fits() bool {
	if o.Available == nil {
		return false
	}
	available, err := o.Available()
	return err == nil && available >= uint64(2*o.size)+memorySpare
}

func (o *Ollama) list(ctx context.Context, path string) ([]listed, error) {
	var answer struct {
		Models []listed `json:"models"`
	}
	err := o.ask(ctx, http.MethodGet, path, nil, &answer)
	return answer.Models, err
}

// ask sends a request and reads its answer.
func (o *Ollama) ask(ctx context.Context, method, path string, in, out any) error {
	ctx, stop := context.WithTimeoutCause(ctx, answerWait, fmt.Errorf("no answer in %v", answerWait))
	defer stop()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, o.URL+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask the Ollama at %s: %w; name another one in OLLAMA_HOST", o.URL, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no Ollama answers at %s: %w; start it, or name another one in OLLAMA_HOST", o.URL, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, answerMax))
	if err != nil {
		return fmt.Errorf("ask the Ollama at %s for %s: %w", o.URL, path, err)
	}
	if res.StatusCode != http.StatusOK {
		return o.refusal(path, res.Status, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("ask the Ollama at %s for %s: its answer is none: %w", o.URL, path, err)
	}
	return nil
}

// tooLong are parts of the errors of Ollama, and of the llama-server in it, about a text that is too long.
var tooLong = []string{"exceeds the context length", "exceeds maximum context length", "too large to process"}

// refusal is the error of an answer with another status than 200.
func (o *Ollama) refusal(path, status string, text []byte) error {
	const quoteMax = 300 // bytes
	var said struct{ Error string }
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		text = []byte(said.Error)
	}
	for _, part := range tooLong {
		if bytes.Contains(text, []byte(part)) {
			return fmt.Errorf("embed with %s: %w", o.Model, ErrTooLong)
		}
	}
	text = bytes.TrimSpace(text[:min(len(text), quoteMax)])
	return fmt.Errorf("ask the Ollama at %s for %s with model %s: %s: %s", o.URL, path, o.Model, status, text)
}
