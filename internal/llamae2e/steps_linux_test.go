package llamae2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
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
	body, err := json.Marshal(in)
	require.NoError(s.t, err)
	res, err := llamatest.Client.Post(s.URL+path, "application/json", bytes.NewReader(body))
	require.NoError(s.t, err)
	defer res.Body.Close()
	require.Equal(s.t, http.StatusOK, res.StatusCode)
	out := streamed{header: res.Header, totals: map[int]bool{}, cached: map[int]bool{}, ids: map[string]bool{}}
	out.header.Del("Keep-Alive")
	out.header.Del("Date")
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
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
	require.NoError(s.t, lines.Err())
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
		for name, value := range more {
			in[name] = value
		}
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
