package main

import (
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Moved is the result of reusing text at another position (OLLAMA_KV_TIER_REUSE=shifted): the
// prompt of a chat that outgrew its context and lost half of it after its first 16th.
type Moved struct {
	Tokens   int            `json:"tokens"` // tokens of the prompt whose time is measured
	Shifted  int            `json:"shifted_tokens"`
	Computed measure.Series `json:"computed"` // seconds to the first token
	Moved    measure.Series `json:"moved"`
	// Own is the time of Ollama's own shift and of one token, without a prompt.
	Own measure.Series `json:"own_shift"`

	// Distances of the log probabilities of the token after DistanceTokens from those of a
	// fully computed prompt: the mean of the 20 best.
	DistanceTokens int            `json:"distance_tokens"`
	MovedApart     measure.Series `json:"moved_apart"`
	OwnApart       measure.Series `json:"own_shift_apart"`
	Between        measure.Series `json:"between"`      // moved and own shift
	WithoutKept    measure.Series `json:"without_kept"` // computed without the 16th, for scale
	Skipped        int            `json:"skipped"`

	Recall MovedRecall `json:"recall"`
}

// MovedRecall counts the questions about moved text that the recall model answered right.
type MovedRecall struct {
	Asked    int `json:"asked"`
	Computed int `json:"computed"`
	Moved    int `json:"moved"`
	Own      int `json:"own_shift"`
}

func (m *Moved) print(w io.Writer) {
	fmt.Fprintf(w, "\nA chat that outgrew its context: %s tokens, of which %s were stored at another position, %d times; log probabilities behind %s tokens, %d times\n\n",
		show.Count(m.Tokens), show.Count(m.Shifted), len(m.Moved.Values), show.Count(m.DistanceTokens), len(m.MovedApart.Values))
	distance := func(s measure.Series) string {
		return spread(s, func(v float64) string { return fmt.Sprintf("%.3f", v) })
	}
	right := func(n int) string { return fmt.Sprintf("%d of %d", n, m.Recall.Asked) }
	table.Print(w, []string{"", "time to first token", "log probabilities apart", "recalled"}, [][]string{
		{"computed", seconds(m.Computed), "", right(m.Recall.Computed)},
		{"moved text reused", seconds(m.Moved), distance(m.MovedApart), right(m.Recall.Moved)},
		{"Ollama's own shift", seconds(m.Own) + " (no prompt)", distance(m.OwnApart), right(m.Recall.Own)},
	})
	fmt.Fprintf(w, "\nReused and own shift are %s apart; without the first 16th they would be %s from computed.\n", distance(m.Between), distance(m.WithoutKept))
}
