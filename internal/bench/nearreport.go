package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Near is the quality of text reused at another position (OLLAMA_KV_TIER_REUSE=shifted) in the
// trained model, against computing all of the prompt.
type Near struct {
	Texts   int   `json:"texts"`
	Tokens  []int `json:"tokens"`         // of each text's prompt
	Shifted []int `json:"shifted_tokens"` // those among them from another position
	Skipped int   `json:"skipped"`        // positions without a token on one side

	Moved NearSide `json:"moved"`
	// WithoutKept is computed without the beginning that the moved text did not stand behind,
	// for scale.
	WithoutKept NearSide `json:"without_kept"`

	Asked         int `json:"asked"` // look-ups in the moved text
	RightComputed int `json:"right_computed"`
	RightMoved    int `json:"right_moved"`
}

// NearSide compares distributions with those of computing.
type NearSide struct {
	KL   measure.Series `json:"kl"`   // nats, of each position; see divergence
	Top1 int            `json:"top1"` // positions with the same best token
}

func (s *NearSide) add(want, got api.Logprob) {
	s.KL.Add(divergence(want, got))
	if want.TopLogprobs[0].Token == got.TopLogprobs[0].Token {
		s.Top1++
	}
}

// mean is the mean divergence.
func (s *NearSide) mean() float64 {
	sum := 0.0
	for _, v := range s.KL.Values {
		sum += v
	}
	return sum / float64(max(len(s.KL.Values), 1))
}

func (n *Near) print(w io.Writer) {
	positions := len(n.Moved.KL.Values)
	fmt.Fprintf(w, "\nText at another position in a trained model: %d prompts of %s tokens, %s of them reused; flash attention off; %d positions\n\n",
		n.Texts, show.Count(least(n.Tokens)), show.Count(least(n.Shifted)), positions)
	right := func(right int) string { return fmt.Sprintf("%d of %d", right, n.Asked) }
	row := func(name string, s NearSide, right string) []string {
		return []string{
			name, fmt.Sprintf("%.4f (median %.4f)", s.mean(), s.KL.Median),
			show.Percent(float64(s.Top1) / float64(max(positions, 1))), right,
		}
	}
	table.Print(w, []string{"", "kl in nats", "same best token", "looked up"}, [][]string{
		{"computed", "", "", right(n.RightComputed)},
		row("moved text reused", n.Moved, right(n.RightMoved)),
		row("computed without the first 16th", n.WithoutKept, ""),
	})
}

// least is the smallest number, 0 of none.
func least(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return slices.Min(numbers)
}
