package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeRunner counts a token for each word, as a runner with a context of limit tokens. The first
// prompt finds cached tokens in the cache.
type fakeRunner struct {
	limit, cached int
	prompts       []completion
}

func (f *fakeRunner) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var c completion
	if err := json.NewDecoder(request.Body).Decode(&c); err != nil || request.URL.Path != "/completion" {
		http.Error(w, "bad request", http.StatusInternalServerError)
		return
	}
	f.prompts = append(f.prompts, c)
	n := len(strings.Fields(c.Prompt))
	if n > f.limit {
		http.Error(w, "too long", http.StatusBadRequest)
		return
	}
	if c.Logprobs {
		w.Write([]byte(`{"logprobs":[{"token":" x","logprob":-0.5,"top_logprobs":[{"token":" x","logprob":-0.6931471805599453},{"token":" y","logprob":-0.6931471805599453}]}]}`)) //nolint:errcheck // the client reports it
	}
	json.NewEncoder(w).Encode(completed{Done: true, Prompt: n, Cached: &f.cached}) //nolint:errcheck // as above
}

func (f *fakeRunner) start(t *testing.T) *engine {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(func() { s.Close(); http.DefaultClient.CloseIdleConnections() })
	address, err := url.Parse(s.URL)
	require.NoError(t, err)
	return &engine{runner: address}
}

func TestRunText(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		limit int
		want  string // error
	}{
		"long words":            {strings.Repeat("abcdefghi ", 4000), 1 << 20, ""},
		"short words":           {strings.Repeat("a ", 4000), 1000, ""},
		"a text just as long":   {strings.Repeat("abc ", 512), 1000, ""},
		"a short text":          {strings.Repeat("abc ", 511), 1000, "it has 511 tokens; give a text of 512 or more"},
		"no length is possible": {strings.Repeat("a ", 4000), 500, "no beginning of it has 512 to 1024 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeRunner{limit: test.limit}
			r := &run{Options: Options{Text: test.text, Tokens: 256, Scored: 256, Model: Model{Context: 4096}}}
			err := r.runText(context.Background(), f.start(t))
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			last := f.prompts[len(f.prompts)-1]
			require.GreaterOrEqual(t, len(strings.Fields(last.Prompt)), 512)
			require.Less(t, len(strings.Fields(last.Prompt)), 1000)
			require.Equal(t, true, last.Options["kv_store"], "its pages are needed")
		})
	}
}

func TestDistributions(t *testing.T) {
	f := &fakeRunner{limit: 1000, cached: 256}
	r := &run{Options: Options{Tokens: 256, Scored: 256}, pieces: texts(512)}
	r.pieces[300] = "\xff" // a part of a character: it has no prompt, and no token has it as its text
	got, err := r.distributions(context.Background(), f.start(t), func(int64, int64) {})
	require.NoError(t, err)
	require.Len(t, got, 255)
	for i, d := range got {
		// Prompts end with tokens 256 to 510, and the part of a character stays in the later ones.
		require.Equal(t, i < 43, d.known, i)
		if d.known {
			require.Equal(t, r.pieces[257+i], d.next)
			require.InDelta(t, 0.5, d.of(" y"), 1e-9)
		}
	}
	require.Equal(t, false, f.prompts[0].Options["kv_store"], "rows after decoded ones are not stored")

	f.cached = 255
	_, err = r.distributions(context.Background(), f.start(t), func(int64, int64) {})
	require.ErrorContains(t, err, "the engine took 255 of 256 tokens from pages")
}

func TestSplit(t *testing.T) {
	vocabulary := []string{"<begin>", "a", " b", "c"}
	r := &run{Options: Options{Text: "a bcc"}}
	r.Model.Decode = func(tokens []int32) (string, error) { return vocabulary[tokens[0]], nil }
	require.NoError(t, r.split([]int32{0, 1, 2, 3}))
	require.Equal(t, []string{"", "a", " b", "c"}, r.pieces)
	require.ErrorContains(t, r.split([]int32{1, 3}), `token 1 is "c" in the model's file, and the text goes on with " "`)
}

func TestBeginning(t *testing.T) {
	require.Equal(t, "aé", beginning("aéb", 3))
	require.Equal(t, "a", beginning("aéb", 2))
	require.Equal(t, "aéb", beginning("aéb", 9))
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"both must be multiples of 256": {Tokens: 300, Scored: 256},
		"measure 512 tokens with x.gguf: its context has 512; choose another model, or fewer tokens": {Tokens: 256, Scored: 256, Text: "a", Model: Model{Path: "x.gguf", Context: 512}},
		// An engine refuses such a text with words that do not name it.
		"measure with the text: it is empty; give a text of 512 tokens or more": {Tokens: 256, Scored: 256, Text: " \n", Model: Model{Path: "x.gguf", Context: 1024}},
	} {
		_, err := Run(context.Background(), o)
		require.ErrorContains(t, err, want)
	}
}

func TestTroubles(t *testing.T) {
	require.Empty(t, troubles("level=INFO msg=good\n"))
	require.Equal(t, "panic: division by zero\nlevel=ERROR msg=ended", troubles("level=INFO msg=good\npanic: division by zero\n\nlevel=ERROR msg=ended\n"))
	require.Equal(t, troublesMax-1, strings.Count(troubles(strings.Repeat("panic: again\n", troublesMax+1)), "\n"))
}
