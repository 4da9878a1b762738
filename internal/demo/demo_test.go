package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

// answer has a text of the given tokens. second is the distance of the second best token's
// log probability.
func answer(second float64, tokens ...string) lab.Answer {
	var a lab.Answer
	a.Text = strings.Join(tokens, "")
	for _, token := range tokens {
		best := api.TokenLogprob{Token: token, Logprob: -1}
		next := api.TokenLogprob{Token: "?", Logprob: -1 - second}
		a.Logprobs = append(a.Logprobs, api.Logprob{TokenLogprob: best, TopLogprobs: []api.TokenLogprob{best, next}})
	}
	return a
}

func TestCompareExact(t *testing.T) {
	want := answer(1, "a", "b")
	require.Equal(t, same, compareExact(want, answer(1, "a", "b")))
	require.Equal(t, differs, compareExact(want, answer(1, "a", "c")))
	bit := answer(1, "a", "b")
	bit.Logprobs[1].Logprob += 1e-15
	require.Equal(t, differs, compareExact(want, bit))
	require.Equal(t, differs, compareExact(lab.Answer{}, lab.Answer{}), "nothing was compared")
}

func TestCompareText(t *testing.T) {
	want := answer(1, "a", "b")
	bit := answer(1, "a", "b")
	bit.Logprobs[1].Logprob += 1e-3
	require.Equal(t, same, compareText(want, bit))
	require.Equal(t, differs, compareText(want, answer(1, "a", "c")))
	require.Equal(t, differs, compareText(want, answer(0.01, "a", "c")), "one side was sure")
	require.Equal(t, reworded, compareText(answer(0.01, "a", "b"), answer(0.01, "a", "c")))
	require.Equal(t, differs, compareText(want, answer(1, "a")))
}

func TestReport(t *testing.T) {
	d := &demo{Lab: &lab.Lab{}}
	for i := range situations {
		a := answer(1, "a", "b")
		a.TTFT, a.LoadDuration, a.PromptEvalCount = 300*time.Millisecond, 200*time.Millisecond, 8003
		if i == 0 {
			a.TTFT = 30200 * time.Millisecond
		}
		if situations[i].stored {
			a.Restored.Tokens = 8002
		}
		d.answers = append(d.answers, a)
	}
	r := newReport(d)
	require.NoError(t, r.problem())
	var out bytes.Buffer
	r.writeTable(&out)
	require.Contains(t, out.String(), `
SITUATION                           PROMPT TOKENS    RESTORED    TIME TO FIRST TOKEN    SPEEDUP    SAME OUTPUT
cold                                8,003            0           30.0 s                            yes
same slot                           8,003            0           100 ms                 300×       yes
after another chat took the slot    8,003            8,002       100 ms                 300×       yes
`)

	require.NotContains(t, out.String(), "Words of a table")

	d.script = withTable(strings.Repeat("text ", 1000), 4000)
	d.computed, d.restored = 7, 6
	out.Reset()
	newReport(d).writeTable(&out)
	require.Contains(t, out.String(), "7 of 8 right when computed, 6 of 8 after kill -9.")
	require.Contains(t, out.String(), "\n    "+strings.TrimSpace(d.question)+"ab\n")

	d.answers[4].Text = "c"
	require.ErrorIs(t, newReport(d).problem(), errDiffers)
	require.ErrorContains(t, newReport(d).problem(), "after kill -9")
	d.answers[3].Restored.Tokens = 0
	require.EqualError(t, newReport(d).problem(), "nothing was restored after the model was unloaded; -log shows why")
}

func TestExcerpt(t *testing.T) {
	text := "añb" // ñ takes two bytes
	require.Equal(t, "añ", excerpt(text, 0, 2))
	require.Equal(t, "b", excerpt(text, 2, 10))
	require.Empty(t, excerpt(text, 9, 1))
}

// TestWithTable: the prompt has a table, and its text before and after is whole.
func TestWithTable(t *testing.T) {
	text := strings.Repeat("añb ", 2000)
	s := withTable(text, 4000)
	before, after, found := strings.Cut(s.text, "\n\nSettings:\n")
	require.True(t, found)
	require.True(t, strings.HasPrefix(text, before))
	require.True(t, strings.HasPrefix(text[len(before):], after[strings.LastIndex(after, "\n")+1:]))
	require.Len(t, s.lookUps, tableLines)
	for _, l := range s.lookUps {
		require.Contains(t, after, strings.TrimPrefix(l.Question, "\n\n")+" "+l.Answer+"\n")
	}
	require.True(t, strings.HasSuffix(s.prompt(), " ="))
	require.NotContains(t, s.other, "Settings")
}

func TestReadText(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"README.md": "one", "LICENSE": "two\xff", "docs/a.md": "three", "build/ollama/src/LICENSE": "four", "main.go": "not a document",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	text, err := settings{model: "m"}.readText(dir)
	require.NoError(t, err)
	require.True(t, utf8.ValidString(text))
	require.Equal(t, "# File README.md\n\none\n\n# File LICENSE\n\ntwo\n\n# File docs/a.md\n\nthree\n\n# File build/ollama/src/LICENSE\n\nfour\n\n", text)

	longer, err := settings{}.readText(dir)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(longer, "\n"+text), "behind the prose for the trained model")

	text, err = settings{text: filepath.Join(dir, "main.go")}.readText(dir)
	require.NoError(t, err)
	require.Equal(t, "not a document", text)
	_, err = settings{text: filepath.Join(dir, "none")}.readText(dir)
	require.ErrorContains(t, err, "reading the text")
}

func TestBorrowModel(t *testing.T) {
	store, dir := t.TempDir(), t.TempDir()
	t.Setenv("OLLAMA_MODELS", store)
	manifest := filepath.Join(store, "manifests", "registry.ollama.ai", "library", "small", "latest")
	require.NoError(t, os.MkdirAll(filepath.Dir(manifest), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(store, "blobs"), 0o755))
	require.NoError(t, os.WriteFile(manifest, []byte(`{"config":{"digest":"sha256:c"},"layers":[{"digest":"sha256:l"},{"digest":"sha256:l"}]}`), 0o644))
	for _, blob := range []string{"sha256-c", "sha256-l"} {
		require.NoError(t, os.WriteFile(filepath.Join(store, "blobs", blob), []byte(blob), 0o644))
	}

	m, err := chooseModel("small", dir)
	require.NoError(t, err)
	require.Equal(t, lab.Model{Name: "small", Models: filepath.Join(dir, "models")}, m)
	got, err := os.ReadFile(filepath.Join(m.Models, "blobs", "sha256-l"))
	require.NoError(t, err)
	require.Equal(t, "sha256-l", string(got))
	require.FileExists(t, filepath.Join(m.Models, "manifests", "registry.ollama.ai", "library", "small", "latest"))

	_, err = chooseModel("none:4b", dir)
	require.EqualError(t, err, "there is no model none:4b in "+store+"; get it with `ollama pull none:4b`, or name the store with OLLAMA_MODELS")
	_, err = chooseModel("none.gguf", dir)
	require.ErrorContains(t, err, "opening the model file")
	require.NoError(t, os.Remove(filepath.Join(store, "blobs", "sha256-l")))
	_, err = chooseModel("small", t.TempDir())
	require.ErrorContains(t, err, "linking a part of")
}

func TestParse(t *testing.T) {
	t.Setenv("MODEL", "qwen3:4b")
	s, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "qwen3:4b", s.model)
	require.Equal(t, defaultTokens, s.tokens)
	s, err = parse([]string{"-model", ""}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, trainedTokens, s.tokens)
	for want, args := range map[string][]string{
		"-tokens 5: at least 512, or there is little to restore":          {"-tokens", "5"},
		"-answer 0: at least one token is needed to compare":              {"-answer", "0"},
		`unexpected argument "serve"; every setting is a flag, see -help`: {"serve"},
	} {
		_, err := parse(args, io.Discard)
		require.EqualError(t, err, want)
	}
}

func skipWithoutOllama(t *testing.T) {
	t.Helper()
	if _, err := ollamatest.FindBinary(); errors.Is(err, ollamatest.ErrNoBinary) {
		t.Skip(err)
	}
}

// folders lists the folders of demos that are running or left theirs behind.
func folders(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", "build", "demo-*"))
	require.NoError(t, err)
	return paths
}

// TestDemo runs the whole demo on a short prompt.
func TestDemo(t *testing.T) {
	skipWithoutOllama(t)
	t.Setenv("MODEL", "")
	before := folders(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("Some of the words that are here. "), 500), 0o644))
	var stdout, stderr bytes.Buffer
	require.NoError(t, run(ctx, []string{"-json", "-tokens", "600", "-answer", "8", "-text", text}, &stdout, &stderr), &stderr)
	var r report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
	require.Len(t, r.Situations, len(situations))
	for i, s := range r.Situations {
		require.NotEqual(t, differs, s.SameOutput, s.Situation)
		require.Equal(t, situations[i].stored, s.Restored > 0, s.Situation)
	}
	require.Equal(t, tableLines, r.LookUps.Asked)
	require.GreaterOrEqual(t, r.LookUps.Restored, r.LookUps.Computed-1, "rounding may decide one")
	require.Contains(t, stderr.String(), "after kill -9")
	require.Equal(t, before, folders(t))
}

// TestServe starts the server of -serve, and ends the server as Ctrl-C does.
func TestServe(t *testing.T) {
	skipWithoutOllama(t)
	t.Setenv("MODEL", "")
	before := folders(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-serve", "-host", "127.0.0.1:0"}, writer, io.Discard)
		writer.Close()
	}()
	greeting := make([]byte, 4096)
	n, err := reader.Read(greeting)
	require.NoError(t, err)
	require.Contains(t, string(greeting[:n]), "run "+demoModel)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, before, folders(t))
}
