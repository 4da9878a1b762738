package llamae2e

import (
	"net/http"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// pair is an Ollama without us, and one with our llama-server.
type pair struct {
	t           *testing.T
	stock, ours *ollama
}

// startPair starts both with a model "m".
func startPair(t *testing.T) *pair {
	p := &pair{t: t, stock: &ollama{t: t}, ours: startOllama(t, "qwen3", "m")}
	p.stock.start("qwen3", []string{"m"}, "OLLAMA_KV_TIERING=0")
	return p
}

// both does the same to both.
func (p *pair) both(do func(o *ollama) error) {
	p.t.Helper()
	for _, o := range []*ollama{p.stock, p.ours} {
		require.NoError(p.t, do(o))
	}
}

// fails requires the same error of both.
func (p *pair) fails(status int, path string, in map[string]any) {
	p.t.Helper()
	wantStatus, want := p.stock.send(path, in)
	gotStatus, got := p.ours.send(path, in)
	require.Equal(p.t, []int{status, status}, []int{wantStatus, gotStatus}, "%s %s", want, got)
	require.Equal(p.t, string(want), string(got))
}

// generate requires the same beginning of the text after a prompt, and returns how many tokens were restored.
func (p *pair) generate(model, prompt string) (restored int) {
	p.t.Helper()
	mark := p.ours.mark()
	requireFirstOf(p.t, p.stock.generate(model, prompt), p.ours.generate(model, prompt))
	return p.ours.restored(mark)
}

// reload unloads a model, whose conversations are stored then.
func (p *pair) reload(model string) {
	p.t.Helper()
	p.both(func(o *ollama) error { return o.Unload(p.t.Context(), model) })
}

// TestOllamasModels: a conversation comes back for a copy of its model, for the one of two that is not
// removed, and for a model that is made again. A model that was removed is none, as without us.
func TestOllamasModels(t *testing.T) {
	p := startPair(t)
	command := func(args ...string) {
		p.both(func(o *ollama) error { return o.Command(t.Context(), args...).Run() })
	}
	gone := func(model string) {
		p.fails(http.StatusNotFound, "/api/generate", map[string]any{"model": model, "prompt": story(0)})
	}
	require.Zero(t, p.generate("m", story(0)))
	p.reload("m")
	command("cp", "m", "copy")
	require.Greater(t, p.generate("copy", story(0)), 500)
	p.reload("copy")
	command("rm", "m")
	gone("m")
	require.Greater(t, p.generate("copy", story(0)), 500)
	p.reload("copy")
	command("rm", "copy")
	gone("copy")
	path := aModel(t, testmodel.Shape{Arch: "qwen3"})
	p.both(func(o *ollama) error { return o.CreateModel(t.Context(), "again", path, chatFile(path)) })
	require.Greater(t, p.generate("again", story(0)), 500)
}

// TestEmbeddingsBesideAChat are those of an Ollama without us, and leave the chat's slot alone.
func TestEmbeddingsBesideAChat(t *testing.T) {
	p := startPair(t)
	path := aModel(t, testmodel.Shape{Arch: "qwen3", Pooling: 3})
	p.both(func(o *ollama) error { return o.CreateModel(t.Context(), "embedder", path, "") })
	embed := func() {
		var vectors [][][]float32
		p.both(func(o *ollama) error {
			out, err := o.API().Embed(t.Context(), &api.EmbedRequest{Model: "embedder", Input: story(1)})
			if err == nil {
				vectors = append(vectors, out.Embeddings)
			}
			return err
		})
		require.Equal(t, vectors[0], vectors[1])
	}
	embed()
	require.Zero(t, p.generate("m", asked(story(0))))
	embed()
	p.fails(http.StatusNotImplemented, "/api/embed", map[string]any{"model": "m", "input": "A fox."})
	require.Zero(t, p.generate("m", asked(story(0))), "it is in its slot")
	loaded, err := p.ours.PS(t.Context())
	require.NoError(t, err)
	require.Len(t, loaded, 2)
	require.NoError(t, p.ours.KillServer())
	require.NoError(t, p.ours.Restart(t.Context()))
	require.Greater(t, p.generate("m", asked(story(0))), 500)
}

// TestAChatLongerThanItsContext is shortened by Ollama and shifted by llama-server as without us, also
// after the model was unloaded.
func TestAChatLongerThanItsContext(t *testing.T) {
	p := startPair(t)
	chat := []any{}
	for n := range 4 {
		chat = append(chat, map[string]any{"role": "user", "content": story(n)[:400]}, map[string]any{"role": "assistant", "content": "Yes."})
	}
	chat = append(chat, map[string]any{"role": "user", "content": "And then?"})
	same := func(path string, in map[string]any) {
		want, got := p.stock.post(path, in), p.ours.post(path, in)
		require.NotEmpty(t, want)
		require.Equal(t, want, got)
	}
	options := func(tokens int) map[string]any {
		o := ollamatest.Greedy(tokens, 256)
		o["num_thread"] = 1 // two wait for each other at each token
		return o
	}
	raw := func(prompt string, tokens int) map[string]any {
		return map[string]any{"model": "m", "prompt": prompt, "raw": true, "options": options(tokens)}
	}
	for range 2 {
		same("/api/chat", map[string]any{"model": "m", "messages": chat, "options": options(20)})
		same("/api/generate", raw(story(5), 20))
		same("/api/generate", raw(story(6)[:600], 100)) // longer than the context with its answer
		p.reload("m")
	}
	long := raw(story(7), 20)
	long["shift"] = false
	p.fails(http.StatusBadRequest, "/api/generate", long)
}
