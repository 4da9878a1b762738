package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/rates"
)

// The prompt of a chat ends with the tokens that open the answer. Many templates leave parts of
// an answer out of later prompts, such as its thoughts; the part that all later prompts share
// ends before the answer. A model with windows or recurrent layers goes on only where a sequence
// was saved, so the slot of such a model is saved there: the prompt is computed in two steps.

// answerOpening bounds the number of tokens that open an answer.
const answerOpening = 16

// turnEnd returns the number of a prompt's tokens before those that open the answer: before the
// last control token, if that is near the end. Otherwise it returns 0.
func turnEnd(tokens []int32, control func(token int32) bool) int {
	for i := len(tokens) - 1; i >= max(0, len(tokens)-answerOpening); i-- {
		if control(tokens[i]) {
			return i
		}
	}
	return 0
}

const (
	// endEvery is the number of tokens after which the end of a sequence is stored again.
	endEvery = 1024
	// endWorth is the time of computing for which it is stored sooner. An end has the rows of
	// a whole window, or the states of all layers, which may be some 100 MB.
	endWorth = 5 * time.Second
	// stageCost is the part of that time which saving a slot may take while a request waits.
	stageCost = 0.1
)

// worthEnd reports whether the end of a slot's sequence is stored, after a number of tokens.
func worthEnd(r *rates.Rates, s *sequence, tokens int) bool {
	return tokens >= s.ended()+endEvery || r.Computing(s.ended(), tokens) >= endWorth
}

// stages decides whether a prompt is computed in two steps.
type stages struct {
	form    form
	files   *files
	rates   *rates.Rates
	control func(token int32) bool // Options.Control
}

// end returns the number of tokens that are computed and saved before the others, 0 if the
// prompt is computed at once.
func (g *stages) end(s *sequence, tokens []int32) int {
	if !g.form.shape.HasEnd() || g.control == nil {
		return 0
	}
	end := turnEnd(tokens, g.control)
	if end%g.form.pageTokens == 0 {
		end-- // a full page may be stored already, without an end
	}
	held := commonPrefix(s.tokens, tokens)
	if end <= max(g.form.window, held) || !worthEnd(g.rates, s, end) || !g.files.fits(s.fileSize(g.form, end)) {
		return 0
	}
	gain := g.rates.Computing(s.ended(), end)
	if g.rates.Reading(saved(s.fileSize(g.form, end))) > time.Duration(stageCost*float64(gain)) || g.rates.Computing(held, end) > stageMax {
		return 0
	}
	return end
}

// saving is the name, among the rates, of the step in which the engine writes a file.
const saving = "llama-server saves"

// saved describes a file that the engine writes to package rates.
func saved(bytes int64) rates.Page { return rates.Page{Bytes: bytes, Tier: saving} }
