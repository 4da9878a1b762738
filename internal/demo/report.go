package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// report is the result of a demo.
type report struct {
	Model      string   `json:"model"`
	Situations []result `json:"situations"`
	LookUps    *lookUps `json:"look_ups,omitempty"` // with the trained model

	tail string // the end of the prompt, and the last answer
}

// lookUps counts right answers to questions about the prompt's table.
type lookUps struct {
	Asked    int `json:"asked"`
	Computed int `json:"computed"`
	Restored int `json:"restored"` // from pages, after kill -9
}

// result is one row of the table.
type result struct {
	Situation    string  `json:"situation"`
	PromptTokens int     `json:"prompt_tokens"`
	Restored     int     `json:"restored_tokens"`
	TTFT         float64 `json:"ttft_seconds"` // client's clock, model load taken off
	Speedup      float64 `json:"speedup"`      // over cold
	SameOutput   verdict `json:"same_output"`

	missing bool // nothing was restored although the prompt was stored
}

func newReport(d *demo) report {
	r := report{Model: d.Model().Name}
	cold := d.answers[0].Wait()
	for i, s := range situations {
		a := d.answers[i]
		r.Situations = append(r.Situations, result{
			Situation:    s.name,
			PromptTokens: a.PromptEvalCount,
			Restored:     a.Restored.Tokens,
			TTFT:         a.Wait().Seconds(),
			Speedup:      cold.Seconds() / a.Wait().Seconds(),
			SameOutput:   s.compare(d.answers[sameSlot], a),
			missing:      s.stored && a.Restored.Tokens == 0,
		})
	}
	if n := len(d.lookUps); n > 0 {
		r.LookUps = &lookUps{Asked: n, Computed: d.computed, Restored: d.restored}
		r.tail = strings.TrimSpace(d.question + d.answers[len(d.answers)-1].Text)
	}
	return r
}

func (r report) writeTable(w io.Writer) {
	var rows [][]string
	for i, s := range r.Situations {
		speedup := show.Times(s.Speedup)
		if i == 0 {
			speedup = ""
		}
		rows = append(rows, []string{
			s.Situation, show.Count(s.PromptTokens), show.Count(s.Restored),
			show.Seconds(time.Duration(s.TTFT * float64(time.Second))), speedup, string(s.SameOutput),
		})
	}
	fmt.Fprintln(w)
	table.Print(w, []string{"situation", "prompt tokens", "restored", "time to first token", "speedup", "same output"}, rows)
	fmt.Fprintln(w, "\nTime by the client's clock, loading of the model taken off. Same output: text of")
	fmt.Fprintln(w, "the cold run; text and every bit of the log probabilities of the others.")
	if l := r.LookUps; l != nil {
		fmt.Fprintf(w, "\nWords of a table in the prompt: %d of %d right when computed, %d of %d after kill -9.\n", l.Computed, l.Asked, l.Restored, l.Asked)
		fmt.Fprintf(w, "The prompt's last line, and the answer after kill -9:\n\n    %s\n", strings.ReplaceAll(r.tail, "\n", "\n    "))
	}
}

func (r report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// problem is a failure of the demo other than a failed request.
func (r report) problem() error {
	var different, missing []string
	for _, s := range r.Situations {
		if s.SameOutput == differs {
			different = append(different, s.Situation)
		}
		if s.missing {
			missing = append(missing, s.Situation)
		}
	}
	switch {
	case len(missing) > 0:
		return fmt.Errorf("nothing was restored %s; -log shows why", strings.Join(missing, ", "))
	case len(different) > 0:
		return fmt.Errorf("%w from the one in the same slot: %s; please report this, with the output of -log", errDiffers, strings.Join(different, ", "))
	}
	return nil
}

// verdict is the relation of an answer to the answer in the same slot.
type verdict string

const (
	same     verdict = "yes"
	reworded verdict = "until a tie" // rounding decided between two equally good tokens
	differs  verdict = "NO"
)

// tieMargin is the distance of two log probabilities within which rounding may decide.
// Computing a prompt in other batches moves a log probability by up to 0.002 in f16, and by
// 0.03 with a q8_0 cache (measured with the test model).
const tieMargin = 0.05

// compareExact compares an answer that was computed from the same rows in the same batches.
func compareExact(want, got lab.Answer) verdict {
	if len(want.Logprobs) > 0 && want.Text == got.Text && want.Thinking == got.Thinking && reflect.DeepEqual(want.Logprobs, got.Logprobs) {
		return same
	}
	return differs
}

// compareText compares an answer that was computed in other batches.
func compareText(want, got lab.Answer) verdict {
	if want.Text == got.Text && want.Thinking == got.Thinking {
		return same
	}
	for i := range min(len(want.Logprobs), len(got.Logprobs)) {
		if want.Logprobs[i].Token == got.Logprobs[i].Token {
			continue
		}
		if tied(want.Logprobs[i]) && tied(got.Logprobs[i]) {
			return reworded
		}
		break
	}
	return differs
}

// tied reports whether the two best tokens were about as likely.
func tied(l api.Logprob) bool {
	return len(l.TopLogprobs) >= 2 && l.TopLogprobs[0].Logprob-l.TopLogprobs[1].Logprob < tieMargin
}
