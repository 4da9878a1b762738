package llamae2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// severalPrompt is the number of tokens of a prompt with several answers.
const severalPrompt = 700

// several asks for two answers to a prompt.
func (s *server) several(seed int) (answers []answer) {
	s.t.Helper()
	s.read("/completion", map[string]any{"prompt": someTokens(seed, severalPrompt), "n_predict": 8, "temperature": 0, "seed": 1, "return_tokens": true, "n_cmpl": 2}, &answers)
	require.Len(s.t, answers, 2)
	return answers
}

// TestSeveralAnswers to a prompt are those of a stock server, and so is the account. The prompt comes back after
// another one, and after the server was killed. There are slots between those of two answers: llama.cpp takes states of
// recurrent layers for each other that are in neighbouring slots (its issue 29002).
func TestSeveralAnswers(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "llama"}, {Arch: "lfm2"}} {
		t.Run(shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, shape), Args: strings.Fields("-c 8192 -np 4 -t 1 -b 256 -ub 256")}
			stock := start(t, o)
			want := [][]answer{stock.several(0), stock.several(1)}
			stock.Kill()
			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			for seed := range want {
				require.Equal(t, want[seed], s.several(seed))
			}
			comesBack := func(seed int) {
				t.Helper()
				for i, got := range s.several(seed) {
					require.Equal(t, want[seed][i].Tokens, got.Tokens)
					require.Equal(t, [2]int{severalPrompt - 1, 1}, [2]int{got.Timings.Cached, got.Timings.Computed})
				}
			}
			comesBack(0)
			comesBack(1)
			s.Kill()
			s = start(t, o)
			comesBack(0)
			comesBack(1)
		})
	}
}

// TestSeveralAnswersWhereNoSlotIsFound: a prompt is computed once, also if llama-server does not look for the slot
// that holds it.
func TestSeveralAnswersWhereNoSlotIsFound(t *testing.T) {
	model := aModel(t, testmodel.Shape{Arch: "llama"})
	for _, similarity := range []string{"0", "0.99", "0.9995", "1"} {
		s := start(t, llamatest.Options{Model: model, Root: filepath.Join(t.TempDir(), "pages"), Args: strings.Fields("-c 4096 -np 3 -t 1 --metrics -sps " + similarity)})
		computed := func() (n int) {
			_, metrics := s.get("/metrics")
			_, rest, _ := strings.Cut(metrics, "\nllamacpp:prompt_tokens_total ")
			_, err := fmt.Sscan(rest, &n)
			require.NoError(t, err)
			return n
		}
		began := computed()
		for _, a := range s.several(0) {
			require.Equal(t, [2]int{0, severalPrompt}, [2]int{a.Timings.Cached, a.Timings.Computed}, similarity)
		}
		require.Equal(t, severalPrompt, computed()-began, similarity)
		s.Kill()
	}
}

// TestAStreamOfSeveralAnswers is that of a stock server, with progress from the first token on, also where the prompt
// is computed in steps. What llama-server refuses, it refuses before anything is computed.
func TestAStreamOfSeveralAnswers(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "llama"}, {Arch: "lfm2"}} {
		t.Run(shape.Arch, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, shape), Args: strings.Fields("-c 6144 -np 3 -t 1 -b 256 -ub 256")}
			stock := start(t, o)
			opening := stock.tokenize("<|im_start|>assistant\n")
			ask := func(more map[string]any) map[string]any {
				in := map[string]any{"prompt": slices.Concat(someTokens(2, severalPrompt), opening), "max_tokens": 8, "temperature": 0, "seed": 1, "stream": true, "return_progress": true, "n": 2}
				maps.Copy(in, more)
				return in
			}
			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			for _, more := range []map[string]any{{"n": 4}, {"n": 0}, {"grammar": "root ::= ("}, {"temperature": "hot"}, {"logprobs": "x"}} {
				wantStatus, want := stock.post("/v1/completions", ask(more))
				status, got := s.post("/v1/completions", ask(more))
				require.Equal(t, http.StatusBadRequest, status)
				require.Equal(t, wantStatus, status)
				require.JSONEq(t, string(want), string(got))
			}
			want, got := stock.progress("/v1/completions", ask(nil)), s.progress("/v1/completions", ask(nil))
			require.Equal(t, want.header, got.header)
			require.Equal(t, want.text, got.text)
			require.Len(t, got.ids, 1)
			require.Equal(t, want.totals, got.totals)
			require.Equal(t, map[int]bool{0: true}, got.cached)
			require.Subset(t, got.processed, []int{0, severalPrompt + len(opening)})
			require.IsNonDecreasing(t, got.processed)
			require.Equal(t, shape.Arch == "lfm2", slices.Contains(got.processed, severalPrompt), "there are steps")
		})
	}
}

// TestSeveralAnswersOfAChat have the usage of a stock server.
func TestSeveralAnswersOfAChat(t *testing.T) {
	o := chatting(t, testmodel.Shape{Arch: "llama"})
	o.Args = append(o.Args, "-np", "3", "-t", "1")
	stock := start(t, o)
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	chat := func(s *server) (out struct {
		Choices []json.RawMessage
		Usage   json.RawMessage
	}) {
		s.read("/v1/chat/completions", map[string]any{
			"max_tokens": 8, "temperature": 0, "n": 2, "logprobs": true, "top_logprobs": 2,
			"messages": []map[string]string{{"role": "system", "content": long}, {"role": "user", "content": "Is there a bug?"}},
		}, &out)
		require.Len(t, out.Choices, 2)
		return out
	}
	for range 2 {
		require.JSONEq(t, string(chat(stock).Usage), string(chat(s).Usage))
	}
}
