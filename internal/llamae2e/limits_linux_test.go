package llamae2e

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestNothingIsStoredAfterAShift: rows of a shifted context do not belong to their tokens.
func TestNothingIsStoredAfterAShift(t *testing.T) {
	model := aModel(t, testmodel.Shape{Arch: "llama"})
	root := filepath.Join(t.TempDir(), "pages")
	s := start(t, llamatest.Options{Model: model, Root: root, Args: strings.Fields("-c 768 -np 1 --context-shift")})
	a := s.complete(someTokens(1, 700), 300)
	require.Len(t, a.Tokens, 300, "the context was shifted")
	s.Kill()
	require.Zero(t, pages(t, root))
}

// TestRowsOfAnotherContextAreNotRestored: with long rope, rows depend on the size of the
// context. Those of other models do not.
func TestRowsOfAnotherContextAreNotRestored(t *testing.T) {
	for arch, shared := range map[string]bool{"llama": true, "phi3": false} {
		t.Run(arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: arch}), Args: strings.Fields("-np 1 -c 4096")}
			stock := start(t, o)
			prompt := someTokens(1, 700)
			want := stock.complete(prompt, 8)
			stock.Kill()

			o.Root = filepath.Join(t.TempDir(), "pages")
			o.Args = strings.Fields("-np 1 -c 2048")
			s := start(t, o)
			s.complete(prompt, 8)
			s.Kill()
			s = start(t, o)
			require.Equal(t, 699, s.complete(prompt, 8).Timings.Cached)
			s.Kill()

			o.Args = strings.Fields("-np 1 -c 4096")
			s = start(t, o)
			got := s.complete(prompt, 8)
			if shared {
				require.Equal(t, 699, got.Timings.Cached)
				return // one token is computed, and rounded otherwise
			}
			require.Zero(t, got.Timings.Cached)
			requireSame(t, want, got, 0)
		})
	}
}

// TestOptionsOfFreeMemory: Ollama loads a model with other options when less memory is free. They change no row.
func TestOptionsOfFreeMemory(t *testing.T) {
	c := &conversation{shape: testmodel.Shape{Arch: "qwen3"}, tokens: 700}
	o := c.options(t)
	stock := start(t, o)
	turns, args := c.hold(stock), o.Args
	stock.Kill()
	o.Root = filepath.Join(t.TempDir(), "pages")
	for i, more := range []string{"", "--load-mode none --no-mmproj-offload --main-gpu 0 --split-mode none", ""} {
		o.Args = append(slices.Clone(args), strings.Fields(more)...)
		s := start(t, o)
		got := c.say(s, turns[i].prompt, nil)
		require.Equal(t, turns[i].cached, got.Timings.Cached)
		requireSame(t, turns[i].answer, got, 0)
		s.Kill()
	}
}

// TestModelsThatPassThrough: chunks of attention are neither rows of all tokens nor a window.
func TestModelsThatPassThrough(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama4", Window: 128}), Args: strings.Fields("-np 1 -c 2048")}
	stock := start(t, o)
	want := stock.complete(someTokens(1, 700), 8)
	stock.Kill()
	o.Root = filepath.Join(t.TempDir(), "pages")
	for range 2 {
		s := start(t, o)
		got := s.complete(someTokens(1, 700), 8)
		require.Zero(t, got.Timings.Cached)
		requireSame(t, want, got, 0)
		s.Kill()
	}
	require.NoDirExists(t, filepath.Join(o.Root, "v1"))
}

// unsteady are the parts of an event that differ between two runs of one server.
var unsteady = regexp.MustCompile(`"(timings|generation_settings)":\{.*\}|"(id_slot|index|t_ms|tokens_cached)":-?[0-9.]+,?`)

// TestStreamsAreThoseOfTheStockServer, event by event.
func TestStreamsAreThoseOfTheStockServer(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama"}), Args: strings.Fields("-c 2048 -np 1")}
	steady := func(events []string) (out []string) {
		for _, e := range events {
			out = append(out, unsteady.ReplaceAllString(e, ""))
		}
		return out
	}
	stock := start(t, o)
	want := steady(stock.stream(someTokens(1, 300), 20))
	require.Greater(t, len(want), 10)
	again := steady(stock.stream(someTokens(1, 300), 20)) // one token is computed, and rounded otherwise
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	require.Equal(t, want, steady(s.stream(someTokens(1, 300), 20)))
	s.Kill()
	s = start(t, o)
	require.Equal(t, again, steady(s.stream(someTokens(1, 300), 20)))
}

// TestRefusals: the actions on slots are ours, other errors are those of llama-server.
func TestRefusals(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama"}), Args: strings.Fields("-c 1024 -np 1")}
	stock := start(t, o)
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	for path, in := range map[string]any{
		"/slots/0?action=save":    map[string]any{"filename": "x"},
		"/slots/0?action=restore": map[string]any{"filename": "x"},
		"/completion":             map[string]any{"prompt": someTokens(1, 2000)},
		"/v1/chat/completions":    map[string]any{"messages": "no list"},
		"/completions":            map[string]any{"prompt": 5},
		"/nothing":                map[string]any{},
		"/metrics":                map[string]any{},
		"/slots/0?action=nothing": map[string]any{},
		"/slots/0":                map[string]any{},
	} {
		wantStatus, want := stock.post(path, in)
		status, got := s.post(path, in)
		require.Equal(t, wantStatus, status, "%s: %s", path, got)
		require.JSONEq(t, string(want), string(got), path)
	}
	for _, path := range []string{"/metrics", "/props", "/slots/0?action=save", "/v1/models", "/no/such/path"} {
		wantStatus, want := stock.get(path)
		status, got := s.get(path)
		require.Equal(t, wantStatus, status, path)
		if path == "/metrics" {
			require.JSONEq(t, want, got)
		}
	}
	status, body := s.post("/completion", map[string]any{"prompt": []int32{}})
	wantStatus, want := stock.post("/completion", map[string]any{"prompt": []int32{}})
	require.Equal(t, wantStatus, status, "%s, want %s", body, want)
}

// TestAFullDisk: on a filesystem without room, answers are those of a stock server, and pages that
// were stored before come back. With room again, slots are stored again.
func TestAFullDisk(t *testing.T) {
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	c := &conversation{shape: testmodel.Shape{Arch: "qwen3"}, args: "-ub 1 -t 1", tokens: 700}
	o := c.options(t)
	stock := start(t, o)
	turns := c.hold(stock)
	stock.Kill()

	o.Root, o.Log = filepath.Join(image.Dir, "pages"), filepath.Join(t.TempDir(), "log")
	s := start(t, o)
	say := func(turn int) (cached int) {
		t.Helper()
		got := c.say(s, turns[turn].prompt, nil)
		requireSame(t, turns[turn].answer, got, 0)
		return got.Timings.Cached
	}
	empty := image.Fill(0)
	require.Zero(t, say(0))
	s.Kill()
	require.Zero(t, pages(t, o.Root))

	s = start(t, o)
	require.Zero(t, say(0))
	empty()
	require.Equal(t, turns[1].cached, say(1))
	s.Kill()
	stored := pages(t, o.Root)
	require.Positive(t, stored)

	empty = image.Fill(0)
	s = start(t, o)
	require.Equal(t, turns[2].cached, say(2))
	s.Kill()
	left := pages(t, o.Root)
	require.LessOrEqual(t, left, stored)

	empty()
	s = start(t, o)
	require.Positive(t, say(2)) // the store may have evicted its last page to make room
	s.Kill()
	require.Greater(t, pages(t, o.Root), left)
}
