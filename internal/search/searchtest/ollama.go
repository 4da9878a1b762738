// Package searchtest is an Ollama that embeds words, for tests of searches.
package searchtest

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Dims is the number of numbers in a vector.
const Dims = 4096

// Ollama answers as an Ollama does. Texts with the same words have similar vectors.
type Ollama struct {
	Models    []string // with tags
	Positions int      // words of a text; 0 for any number

	// Instead may give other vectors, or write another answer and return nil.
	Instead func(w http.ResponseWriter, r *http.Request, texts []string, vectors [][]float32) [][]float32

	mu     sync.Mutex
	loaded []string
	asked  []Request
}

// Request is a request to embed texts.
type Request struct {
	Model    string         `json:"model"`
	Input    []string       `json:"input"`
	Truncate *bool          `json:"truncate"`
	Options  map[string]any `json:"options"`
}

// Load makes models the only ones in memory.
func (o *Ollama) Load(models ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loaded = models
}

// Asked returns the requests to embed texts so far.
func (o *Ollama) Asked() []Request {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

// Digest is the digest of a model.
func Digest(model string) string { return hex.EncodeToString(fmt.Appendf(nil, "%-32.32s", model)) }

func (o *Ollama) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/api/tags":
		list(w, o.Models)
	case "/api/ps":
		o.mu.Lock()
		loaded := o.loaded
		o.mu.Unlock()
		list(w, loaded)
	case "/api/embed":
		o.embed(w, r)
	default:
		http.NotFound(w, r)
	}
}

func list(w http.ResponseWriter, models []string) {
	all := []map[string]any{}
	for _, m := range models {
		all = append(all, map[string]any{"name": m, "model": m, "digest": Digest(m), "size": 1 << 20})
	}
	answer(w, http.StatusOK, map[string]any{"models": all})
}

func answer(w http.ResponseWriter, status int, content any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content)
}

func (o *Ollama) embed(w http.ResponseWriter, r *http.Request) {
	var in Request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	o.mu.Lock()
	o.asked = append(o.asked, in)
	o.mu.Unlock()
	var vectors [][]float32
	for _, text := range in.Input {
		words := strings.Fields(strings.ToLower(text))
		if o.Positions > 0 && len(words) > o.Positions && in.Truncate != nil && !*in.Truncate {
			answer(w, http.StatusBadRequest, map[string]string{"error": "the input length exceeds the context length"})
			return
		}
		vectors = append(vectors, vector(words))
	}
	if o.Instead != nil {
		if vectors = o.Instead(w, r, in.Input, vectors); vectors == nil {
			return
		}
	}
	answer(w, http.StatusOK, map[string]any{"model": in.Model, "embeddings": vectors})
}

func vector(words []string) []float32 {
	v := make([]float32, Dims)
	for _, word := range words {
		h := fnv.New32a()
		_, _ = h.Write([]byte(word))
		v[h.Sum32()%Dims]++
	}
	return v
}
