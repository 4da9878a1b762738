package llamae2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// streamed is a stream with the progress of its prompt.
type streamed struct {
	header    http.Header
	processed []int
	totals    map[int]bool
	cached    map[int]bool
	ids       map[string]bool
	text      string
	failed    bool
}

// progress asks for a stream with progress.
func (s *server) progress(path string, in map[string]any) streamed {
	s.t.Helper()
	header, lines := s.events(path, in)
	out := streamed{header: header, totals: map[int]bool{}, cached: map[int]bool{}, ids: map[string]bool{}}
	out.header.Del("Keep-Alive")
	out.header.Del("Date")
	for _, line := range lines {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var e struct {
			ID       string
			Content  string
			Choices  []struct{ Text string }
			Error    json.RawMessage
			Progress *struct{ Total, Cache, Processed int } `json:"prompt_progress"`
		}
		require.NoError(s.t, json.Unmarshal([]byte(data), &e))
		out.ids[e.ID] = true
		out.text += e.Content
		for _, c := range e.Choices {
			out.text += c.Text
		}
		out.failed = out.failed || e.Error != nil
		if p := e.Progress; p != nil {
			out.processed = append(out.processed, p.Processed)
			out.totals[p.Total], out.cached[p.Cache] = true, true
		}
	}
	return out
}

// TestAStreamOfTwoSteps is for its client a stream of one: a header, progress from the first token to the
// last, and then the answer. What llama-server refuses after the first step is the stream's last event.
func TestAStreamOfTwoSteps(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "lfm2"}), Args: strings.Fields("-c 4096 -np 1 -b 256 -ub 256")}
	stock := start(t, o)
	opening := stock.tokenize("<|im_start|>assistant\n")
	ask := func(seed int, more map[string]any) map[string]any {
		in := map[string]any{"prompt": slices.Concat(someTokens(seed, 1500), opening), "n_predict": 8, "max_tokens": 8, "temperature": 0, "seed": 1, "stream": true, "return_progress": true}
		maps.Copy(in, more)
		return in
	}
	total := 1500 + len(opening)
	var want []streamed
	paths := []string{"/completion", "/v1/completions"}
	for seed, path := range paths {
		want = append(want, stock.progress(path, ask(seed, nil)))
	}
	begin := func() *server { // a daemon that saves no other slot meanwhile
		o.Root = filepath.Join(t.TempDir(), "pages")
		return start(t, o)
	}
	for seed, path := range paths {
		got := begin().progress(path, ask(seed, nil))
		require.Equal(t, want[seed].header, got.header)
		require.Equal(t, want[seed].text, got.text)
		require.Len(t, got.ids, 1)
		require.Equal(t, map[int]bool{total: true}, got.totals)
		require.Equal(t, map[int]bool{0: true}, got.cached)
		require.True(t, slices.IsSorted(got.processed), "%v", got.processed)
		require.Equal(t, []int{0, total}, []int{got.processed[0], got.processed[len(got.processed)-1]})
		require.Contains(t, got.processed, 1500, "there are two steps")
	}
	s := begin()
	require.True(t, s.progress("/completion", ask(7, map[string]any{"grammar": "root ::= ("})).failed)
	require.Equal(t, want[0].text, s.progress("/completion", ask(0, nil)).text)
}

// TestAnAgentsLoop computes little again for a model of any kind, although its server is killed after
// each answer and the template leaves thoughts out: what an ideal cache of rows would compute.
func TestAnAgentsLoop(t *testing.T) {
	const thoughts, words, tool = 40, 20, 300
	base, turns := 2000, 4
	if os.Getenv("KVTIER_LONG") != "" {
		base, turns = 8000, 10
	}
	for _, shape := range []testmodel.Shape{{Arch: "llama"}, {Arch: "lfm2"}, {Arch: "qwen35"}, {Arch: "gemma3", Window: 128}} {
		t.Run(shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, shape), Root: filepath.Join(t.TempDir(), "pages"), Args: []string{"-np", "1", "-t", "1", "-c", strconv.Itoa(base + turns*500)}}
			text, computed, ideal := someTokens(1, base), 0, 0
			for turn := range turns {
				s := start(t, o)
				opening := s.tokenize("<|im_start|>assistant\n")
				a := s.complete(slices.Concat(text, opening), thoughts+words)
				require.Len(t, a.Tokens, thoughts+words)
				if turn > 0 {
					computed, ideal = computed+a.Timings.Computed, ideal+words+tool+len(opening)
				}
				text = slices.Concat(text, opening, a.Tokens[thoughts:], someTokens(50+turn, tool))
				s.Kill()
			}
			t.Logf("%d tokens computed again, %.3f times the least", computed, float64(computed)/float64(ideal))
			require.LessOrEqual(t, float64(computed), 1.05*float64(ideal))
		})
	}
}

// TestANewSession begins with the system prompt and tools of one whose server was killed, and computes
// only what is behind them.
func TestANewSession(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "llama"}, {Arch: "lfm2"}, {Arch: "gemma3", Window: 128}} {
		t.Run(shape.Arch, func(t *testing.T) {
			o := chatting(t, shape)
			o.Root = filepath.Join(t.TempDir(), "pages")
			ask := func(s *server, question string) (cached, computed int) {
				var out answer
				s.read("/v1/chat/completions", map[string]any{"max_tokens": 8, "messages": []map[string]string{
					{"role": "system", "content": long}, {"role": "user", "content": question},
				}}, &out)
				return out.Timings.Cached, out.Timings.Computed
			}
			s := start(t, o)
			cached, system := ask(s, "Is there a bug in the first file?")
			require.Zero(t, cached)
			s.Kill()
			s = start(t, o)
			cached, computed := ask(s, "Write a test for the second one.")
			require.Greater(t, cached, system-100)
			require.Less(t, computed, 100)
			s.Kill()
		})
	}
}

// TestAPromptAskedAgain without control tokens comes back the third time.
func TestAPromptAskedAgain(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "lfm2"}, {Arch: "gemma3", Window: 128}} {
		t.Run(shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, shape), Root: filepath.Join(t.TempDir(), "pages"), Args: []string{"-np", "1", "-t", "1", "-c", "2048"}}
			for _, cached := range []int{0, 0, 699} {
				s := start(t, o)
				require.Equal(t, cached, s.complete(someTokens(1, 700), 8).Timings.Cached)
				s.Kill()
			}
		})
	}
}
