package llamatier

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvtier/kvtier/rates"
)

// A model with windows or recurrent layers goes on only where a sequence was saved. So the prompt of such a
// model is computed in steps, and the slot is saved between them, where later prompts part from this one:
//
//   - before the first message of a user: other chats begin with the same system prompt and tools;
//   - where a stored prompt parts from this one: the next one will probably part there, too;
//   - before the tokens that open the answer: many templates leave parts of an answer out of later
//     prompts, such as its thoughts.

// answerOpening bounds the number of tokens that open an answer.
const answerOpening = 16

// LastControl returns the number of tokens before the last control token, if that is among a number
// of last tokens. Otherwise, and if control is nil, it returns 0.
func LastControl(tokens []int32, among int, control func(token int32) bool) int {
	for i := len(tokens) - 1; i >= max(0, len(tokens)-among) && control != nil; i-- {
		if control(tokens[i]) {
			return i
		}
	}
	return 0
}

const (
	// endEvery is the number of tokens after which the end of a sequence is stored again.
	endEvery = 1024
	// endSpeed is the speed, in bytes per second, of a disk on which an end is stored sooner. An end has
	// the rows of a whole window, or the states of all layers, which may be some 100 MB.
	endSpeed = 100 << 20
	// stageCost is the part of the time of computing that saving a slot may take while requests wait.
	stageCost = 0.1
	// stageLeast is the time that a step takes at least.
	stageLeast = 5 * time.Millisecond
)

// worthEnd reports whether the end of a sequence is stored, of which an earlier one is: if there are many
// tokens between them, or if computing them takes longer than writing the end.
func (f form) worthEnd(r *rates.Rates, earlier, end int) bool {
	writing := time.Duration(float64(f.shape.EndBytes(end, f.window)) / endSpeed * float64(time.Second))
	return end-earlier >= endEvery || end-earlier >= restoreMin && r.Computing(earlier, end) >= writing
}

// stages decides in which steps a prompt is computed.
type stages struct {
	form    form
	files   *files
	rates   *rates.Rates
	control func(token int32) bool // Options.Control; nil if that is not known
	user    []int32                // Options.UserStart
	always  bool                   // steps are taken at any cost
}

// ends returns the numbers of tokens after which a slot is saved while it computes a prompt, of which
// the store has the first rows. Each save holds up a number of requests.
func (g *stages) ends(s *sequence, tokens []int32, stored, requests int) (ends []int) {
	if !g.form.shape.HasEnd() {
		return nil
	}
	held := commonPrefix(s.tokens, tokens)
	earlier, last := s.ended(), max(g.form.window, held)
	all := []int{g.firstUser(tokens), g.parting(tokens, stored), g.turnEnd(tokens)}
	slices.Sort(all)
	for _, end := range all {
		if end%g.form.pageTokens == 0 {
			end-- // a full page may be stored already, without an end
		}
		if end > last && g.pays(s, earlier, end, requests) && g.rates.Computing(held, end) <= stageMax {
			ends, earlier, last = append(ends, end), end, end
		}
	}
	return ends
}

// firstUser returns the number of tokens before the first message of a user, 0 if it is not known.
func (g *stages) firstUser(tokens []int32) int {
	for i := range max(0, len(tokens)-len(g.user)) {
		if len(g.user) > 0 && slices.Equal(tokens[i:][:len(g.user)], g.user) {
			return i
		}
	}
	return 0
}

// parting returns the number of tokens after which a stored prompt parts from this one, back to the
// beginning of a part of a chat, if one begins just before. The engine computes the last token in any case.
func (g *stages) parting(tokens []int32, stored int) int {
	stored = min(stored, len(tokens)-1)
	return cmp.Or(LastControl(tokens[:stored+1], restoreMin, g.control), stored)
}

// turnEnd returns the number of tokens before those that open the answer, 0 if it is not known.
func (g *stages) turnEnd(tokens []int32) int {
	return LastControl(tokens, answerOpening, g.control)
}

// pays reports whether a step up to an end is worth its save, where the slot has an earlier end.
func (g *stages) pays(s *sequence, earlier, end, requests int) bool {
	size := s.fileSize(g.form, end)
	if !g.form.worthEnd(g.rates, earlier, end) || !g.files.fits(size) {
		return false
	}
	cost := max(stageLeast, g.rates.Stepping(saved(size))) * time.Duration(requests)
	return g.always || cost <= g.most(earlier, end)
}

// most is the time that saving a slot may take which has an earlier end.
func (g *stages) most(earlier, end int) time.Duration {
	return time.Duration(stageCost * float64(g.rates.Computing(earlier, end)))
}

// saving is the name, among the rates, of the step in which the engine writes a file.
const saving = "llama-server saves"

// saved describes a file that the engine writes to package rates.
func saved(bytes int64) rates.Page { return rates.Page{Bytes: bytes, Tier: saving} }
