package search

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/search/searchtest"
)

// words are a vocabulary.
type words struct{ list []string }

// tokens returns the tokens of a text.
func (v *words) tokens(text string) (tokens []int32) {
	for _, word := range strings.Fields(text) {
		tokens = append(tokens, int32(len(v.list)))
		v.list = append(v.list, word)
	}
	return tokens
}

func (v *words) Words(tokens []int32) (string, error) {
	var text []string
	for _, t := range tokens {
		text = append(text, v.list[t])
	}
	return strings.Join(text, " "), nil
}

const pageTokens = 128

// bench is a store and an Ollama for a test.
type bench struct {
	t       *testing.T
	local   string
	store   *diskstore.Store
	root    *diskstore.Root
	ollama  *searchtest.Ollama
	client  *Ollama
	search  *Search
	written int // calls of Search.Put
	words
}

var fingerprint = pagefile.Key{1, 31: 2}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, local: filepath.Join(t.TempDir(), "root"), ollama: &searchtest.Ollama{Models: []string{"all-minilm:latest", "other:1b"}}}
	server := httptest.NewServer(b.ollama)
	t.Cleanup(server.Close)
	b.client = &Ollama{URL: server.URL, Model: "all-minilm"}
	var err error
	b.store, err = diskstore.Open(t.Context(), diskstore.Options{
		Fingerprint: fingerprint, PageTokens: pageTokens, Local: diskstore.TierConfig{Root: b.local},
	})
	require.NoError(t, err)
	b.root, err = diskstore.OpenRoot(t.Context(), diskstore.RootOptions{Local: diskstore.TierConfig{Root: b.local}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.root.Close())
		require.NoError(t, b.store.Close())
	})
	local, _ := b.root.Dirs()
	b.search = &Search{
		Embedder: b.client, Pages: local, Texts: 1000, Top: 5,
		Put: func(ctx context.Context, page pagefile.Name, content []byte) error {
			b.written++
			return b.root.PutVectors(ctx, page, content)
		},
		Decoder: func(context.Context, pagefile.Key) (Decoder, error) { return b, nil },
	}
	return b
}

// put stores a conversation, and returns the keys of its pages.
func (b *bench) put(tokens []int32) (keys []pagefile.Key) {
	b.t.Helper()
	layout := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 64}}
	parent := fingerprint
	for at := 0; at < len(tokens); at += pageTokens {
		part := tokens[at:min(at+pageTokens, len(tokens))]
		l, err := pagefile.NewLayout(layout, len(part))
		require.NoError(b.t, err)
		p := &pagefile.Page{Parent: parent, Start: uint32(at), Tokens: part, Layout: l, Payload: make([]byte, l.Size())}
		require.NoError(b.t, b.store.Put(b.t.Context(), p))
		parent = p.Key()
		keys = append(keys, parent)
	}
	return keys
}

// file returns the path of a file of a page.
func (b *bench) file(key pagefile.Key, ext string) (found string) {
	b.t.Helper()
	require.NoError(b.t, filepath.WalkDir(b.local, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == key.String()+ext {
			found = path
		}
		return err
	}))
	require.NotEmpty(b.t, found)
	return found
}

func (b *bench) run(query string) *Result {
	b.t.Helper()
	r, err := b.search.Run(b.t.Context(), query)
	require.NoError(b.t, err)
	return r
}

// about returns a text of n words, of which those around the place at are about a subject.
func about(subject string, at, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-filler%d", subject, i)
	}
	copy(list[at:], strings.Fields(strings.Repeat("the "+subject+" ", 20)))
	return strings.Join(list, " ")
}

func TestSearch(t *testing.T) {
	b := newBench(t)
	b.put(b.tokens(about("guitar", 0, 100)))
	bread := b.put(b.tokens(about("bread", 200, 300)))
	r := b.run("bread")
	require.Len(t, r.Found, 1)
	found := r.Found[0]
	require.Equal(t, bread[2], found.Conversation)
	require.Equal(t, bread[1], found.Page)
	require.Equal(t, []int{192, 255, 300, 300}, []int{found.First, found.Last, found.Stored, found.Tokens})
	require.Contains(t, found.Text, "the bread the bread")
	require.Greater(t, found.Score, r.Threshold)
	require.Equal(t, found.Score, r.Best)
	require.Equal(t, []int{4, 4, 7, 7, 1}, []int{r.Pages, r.Indexed, r.Vectors, r.Embedded, r.Hits})

	for _, ask := range b.ollama.Asked() {
		require.False(t, *ask.Truncate)
		require.Equal(t, map[string]any{"num_gpu": 0., "num_ctx": 512.}, ask.Options)
	}

	// what is known already is not embedded again
	again := b.run("guitar")
	require.Equal(t, []int{0, 7}, []int{again.Embedded, again.Vectors})
	require.Len(t, again.Found, 1)
	require.Empty(t, b.run("football").Found)

	b.search.Threshold = r.Best + 0.01
	require.Empty(t, b.run("bread").Found)
	b.search.Threshold = r.Best
	require.Len(t, b.run("bread").Found, 1)
}

// TestVectorsThatCannotBeUsed: damaged ones and those of others are computed again.
func TestVectorsThatCannotBeUsed(t *testing.T) {
	b := newBench(t)
	first := b.put(b.tokens(about("guitar", 0, 100)))[0]
	second := b.put(b.tokens(about("bread", 0, 100)))[0]
	b.run("bread")
	good, err := os.ReadFile(b.file(first, ".kvv"))
	require.NoError(t, err)
	others, err := os.ReadFile(b.file(second, ".kvv"))
	require.NoError(t, err)
	flipped := append([]byte(nil), good...)
	flipped[150] ^= 1
	for name, content := range map[string][]byte{"flipped": flipped, "cut": good[:len(good)-1], "empty": {}, "of another page": others, "foreign": []byte("hello")} {
		require.NoError(t, os.WriteFile(b.file(first, ".kvv"), content, 0o600))
		r := b.run("guitar")
		require.Equal(t, 2, r.Embedded, name)
		require.Equal(t, first, r.Found[0].Conversation, name)
		now, err := os.ReadFile(b.file(first, ".kvv"))
		require.NoError(t, err)
		require.Equal(t, good, now, name)
	}
	b.client.Model, b.client.dims = "other:1b", 0
	require.Equal(t, 4, b.run("guitar").Embedded, "vectors of another model")
}

// TestHostileVectors: no content of a file does more than fail to be read.
func TestHostileVectors(t *testing.T) {
	key, model := pagefile.Key{7}, [32]byte{9}
	p := place{Key: key, Parent: pagefile.Key{8}, Start: 256, Tokens: 128}
	good := encode(model, p, []vector{quantize(0, []float32{0.6, -0.8}), quantize(64, []float32{1, 0})})
	at, vectors, err := decode(good, model, key, 2)
	require.NoError(t, err)
	require.Equal(t, p, at)
	require.Len(t, vectors, 2)
	require.Equal(t, 64, vectors[1].at)
	require.InDelta(t, 1, vectors[0].score([]float32{0.6, -0.8}), 0.01)
	for i := range good {
		_, _, err := decode(good[:i], model, key, 2)
		require.Error(t, err)
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x80
		_, _, err = decode(bad, model, key, 2)
		require.Error(t, err)
	}
	_, _, err = decode(good, model, key, 3)
	require.Error(t, err, "of another number of numbers")
	outside := encode(model, p, []vector{quantize(128, []float32{1, 0})})
	_, _, err = decode(outside, model, key, 2)
	require.Error(t, err, "a part behind the page's end")
	none := encode(model, p, nil)
	_, vectors, err = decode(none, model, key, 2)
	require.NoError(t, err, "a page without text")
	require.Empty(t, vectors)
}

// TestTextsOfARun: those used last come first, and the rest another time.
func TestTextsOfARun(t *testing.T) {
	b := newBench(t)
	old := b.put(b.tokens(about("guitar", 0, 100)))[0]
	then := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(b.file(old, ".kvp"), then, then))
	b.put(b.tokens(about("bread", 0, 100)))
	b.search.Texts = 0
	r := b.run("bread")
	require.Equal(t, []int{2, 0, 0}, []int{r.Pages, r.Indexed, r.Embedded})
	b.search.Texts = 1
	var progress []int
	b.search.Progress = func(done, total int) { progress = append(progress, done, total) }
	r = b.run("bread")
	require.Equal(t, []int{1, 2}, []int{r.Indexed, r.Embedded}, "a whole page")
	require.Equal(t, []int{0, 1}, progress)
	require.Len(t, r.Found, 1)
	require.Empty(t, b.run("bread").Skipped)
	require.Len(t, b.run("guitar").Found, 1)
}

// TestTextsThatAreTooLong are divided.
func TestTextsThatAreTooLong(t *testing.T) {
	b := newBench(t)
	b.ollama.Positions = 30
	tokens := b.tokens(about("bread", 0, 100))
	b.list[3] = strings.Repeat("long ", 31) // a token that is too long alone
	bread := b.put(tokens)
	r := b.run("bread")
	require.Equal(t, bread[0], r.Found[0].Conversation)
	require.Greater(t, r.Vectors, 4)
	content, err := os.ReadFile(b.file(bread[0], ".kvv"))
	require.NoError(t, err)
	model, err := b.client.Open(t.Context())
	require.NoError(t, err)
	_, vectors, err := decode(content, model, bread[0], searchtest.Dims)
	require.NoError(t, err)
	covered := make(map[int]bool)
	for _, v := range vectors {
		require.False(t, covered[v.at])
		covered[v.at] = true
	}
	require.False(t, covered[3])
	require.True(t, covered[4])
	_, err = b.search.Run(t.Context(), strings.Repeat("word ", 31))
	require.ErrorContains(t, err, "search for fewer words")
}

// TestConversations: a page belongs to the conversation that was used last.
func TestConversations(t *testing.T) {
	b := newBench(t)
	shared := b.tokens(about("bread", 0, pageTokens))
	one := b.put(append(append([]int32{}, shared...), b.tokens(about("guitar", 0, 2*pageTokens))...))
	two := b.put(append(append([]int32{}, shared...), b.tokens(about("football", 0, 30))...))
	later := time.Now().Add(30 * time.Second)
	require.NoError(t, os.Chtimes(b.file(two[1], ".kvp"), later, later))
	r := b.run("bread")
	require.Equal(t, two[1], r.Found[0].Conversation)
	require.Equal(t, []int{pageTokens + 30, pageTokens + 30}, []int{r.Found[0].Stored, r.Found[0].Tokens})
	require.NoError(t, os.Chtimes(b.file(one[2], ".kvp"), later.Add(time.Second), later.Add(time.Second)))
	require.Equal(t, one[2], b.run("bread").Found[0].Conversation)

	require.NoError(t, os.Remove(b.file(one[0], ".kvp")))
	r = b.run("guitar")
	require.Equal(t, []int{2 * pageTokens, 3 * pageTokens}, []int{r.Found[0].Stored, r.Found[0].Tokens}, "the beginning is missing")
}

// TestSkippedPages: a model whose vocabulary is not known, and no room.
func TestSkippedPages(t *testing.T) {
	b := newBench(t)
	b.put(b.tokens(about("bread", 0, 300)))
	known := b.search.Decoder
	b.search.Decoder = func(context.Context, pagefile.Key) (Decoder, error) { return nil, fmt.Errorf("no vocabulary") }
	r := b.run("bread")
	require.Equal(t, []Skipped{{fingerprint, "no vocabulary", 3}}, r.Skipped)
	require.Zero(t, r.Indexed)
	b.search.Decoder = known
	b.search.Put = func(context.Context, pagefile.Name, []byte) error { return tier.ErrNoSpace }
	r = b.run("bread")
	require.True(t, r.Full)
	require.Equal(t, 1, r.Indexed, "it was embedded, and counts for this search")
}

// TestBadAnswers: an Ollama that gives no good vectors is an error, and vectors made before stay.
func TestBadAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		instead func(w http.ResponseWriter, v [][]float32) [][]float32
		want    string
	}{
		"fewer":     {func(_ http.ResponseWriter, v [][]float32) [][]float32 { return v[1:] }, "gave 1 vectors"},
		"shorter":   {func(_ http.ResponseWriter, v [][]float32) [][]float32 { v[0] = v[0][1:]; return v }, "4095 numbers where 4096"},
		"empty":     {func(_ http.ResponseWriter, v [][]float32) [][]float32 { v[0] = nil; return v }, "0 numbers"},
		"zero":      {func(_ http.ResponseWriter, v [][]float32) [][]float32 { clear(v[1]); return v }, "no direction"},
		"NaN":       {says(500, `{"error":"failed to encode response: json: unsupported value: NaN"}`), "unsupported value: NaN"},
		"no JSON":   {says(200, `<html>`), "its answer is none"},
		"too large": {says(200, `{"embeddings":[[1e99]]}`), "its answer is none"},
		"removed":   {says(404, `{"error":"model \"all-minilm\" not found, try pulling it first"}`), "not found, try pulling it first"},
		"no vector": {says(501, `{"error":"this model does not support embeddings"}`), "does not support embeddings"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.put(b.tokens(about("bread", 0, 100)))
			b.put(b.tokens(about("guitar", 0, 100)))
			asked := 0
			b.ollama.Instead = func(w http.ResponseWriter, _ *http.Request, texts []string, v [][]float32) [][]float32 {
				if asked++; asked < 3 { // the words, and one page
					return v
				}
				return c.instead(w, v)
			}
			r, err := b.search.Run(t.Context(), "bread")
			require.ErrorContains(t, err, c.want)
			require.Equal(t, 1, r.Indexed)
			require.Equal(t, 1, b.written)
			b.ollama.Instead = nil
			require.Equal(t, 2, b.run("bread").Embedded)
		})
	}
}

func says(status int, text string) func(http.ResponseWriter, [][]float32) [][]float32 {
	return func(w http.ResponseWriter, _ [][]float32) [][]float32 {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
		return nil
	}
}

// TestInterruption: vectors made before stay.
func TestInterruption(t *testing.T) {
	b := newBench(t)
	b.put(b.tokens(about("bread", 0, 100)))
	b.put(b.tokens(about("guitar", 0, 100)))
	ctx, interrupt := context.WithCancel(t.Context())
	asked := 0
	b.ollama.Instead = func(_ http.ResponseWriter, r *http.Request, _ []string, v [][]float32) [][]float32 {
		if asked++; asked < 3 {
			return v
		}
		interrupt()
		<-r.Context().Done() // as slow as can be
		return nil
	}
	_, err := b.search.Run(ctx, "bread")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, b.written)
	b.ollama.Instead = nil
	require.Equal(t, 2, b.run("bread").Embedded)
}

// TestLoading: no other model is unloaded for the embedding model.
func TestLoading(t *testing.T) {
	plenty, little := func() (uint64, error) { return 1 << 40, nil }, func() (uint64, error) { return 1 << 20, nil }
	for name, c := range map[string]struct {
		loaded []string
		set    func(*Ollama)
		refuse string
		shared bool // somebody else has loaded it
	}{
		"nothing is loaded":       {},
		"it is loaded":            {loaded: []string{"chat:1b", "all-minilm:latest"}, shared: true},
		"another one is loaded":   {loaded: []string{"chat:1b"}, refuse: "has chat:1b in memory, and may unload it for all-minilm"},
		"two are loaded":          {loaded: []string{"chat:1b", "b:1b"}, set: func(o *Ollama) { o.LoadedMax, o.Available = 2, plenty }, refuse: "OLLAMA_MAX_LOADED_MODELS to 3 or more"},
		"three may be":            {loaded: []string{"chat:1b", "b:1b"}, set: func(o *Ollama) { o.LoadedMax, o.Available = 3, plenty }},
		"there is no memory":      {loaded: []string{"chat:1b"}, set: func(o *Ollama) { o.LoadedMax, o.Available = 3, little }, refuse: "may unload it"},
		"the memory is not known": {loaded: []string{"chat:1b"}, set: func(o *Ollama) { o.LoadedMax = 3 }, refuse: "may unload it"},
		"forced":                  {loaded: []string{"chat:1b"}, set: func(o *Ollama) { o.Force = true }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ollama.Load(c.loaded...)
			if c.set != nil {
				c.set(b.client)
			}
			_, err := b.search.Run(t.Context(), "bread")
			if c.refuse != "" {
				require.ErrorContains(t, err, c.refuse)
				require.Empty(t, b.ollama.Asked())
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.shared, b.ollama.Asked()[0].Options == nil, "a model of others keeps its options")
		})
	}
	b := newBench(t)
	b.client.Model = "missing"
	_, err := b.search.Run(t.Context(), "bread")
	require.ErrorContains(t, err, `has no model "missing"; run ollama pull missing`)
	b.client.URL = "http://127.0.0.1:1"
	_, err = b.search.Run(t.Context(), "bread")
	require.ErrorContains(t, err, "no Ollama answers at http://127.0.0.1:1")
}

func TestFloor(t *testing.T) {
	scores := make([]float64, len(Background))
	require.Equal(t, floorMin, Floor(scores))
	for i := range scores {
		scores[i] = 0.6 + 0.01*float64(i%3)
	}
	require.InDelta(t, 0.65, Floor(scores), 0.01)
	scores[0], scores[1] = 0.9, 0.9 // the words are about these
	require.InDelta(t, 0.65, Floor(scores), 0.01)
	scores[5] = -1
	require.Equal(t, 1., Floor(scores), "no score can be higher")
}
