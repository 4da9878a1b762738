package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/testmodel"
)

const (
	movedLong    = 8192 // tokens of a context whose prompt times are compared
	movedShort   = 2048 // tokens of a context for log probabilities and recall, which need many
	movedSamples = 4    // number of short contexts per repetition

	movedKeptShare = 16 // 1/16 of a context is kept before the part left out
	movedChats     = 20 // at most so many in place of chats whose answer ends within a character
	movedTop       = 20 // compared alternatives, the most that Ollama gives
)

// Moved is the result of reusing text at another position (OLLAMA_KV_TIER_REUSE=shifted): the
// prompt of a chat that outgrew its context and lost half of it after its first 16th.
type Moved struct {
	Tokens   int            `json:"tokens"` // tokens of the prompt whose time is measured
	Shifted  int            `json:"shifted_tokens"`
	Computed measure.Series `json:"computed" unit:"s"` // seconds to the first token
	Moved    measure.Series `json:"moved" unit:"s"`
	// Own is the time of Ollama's own shift and of one token, without a prompt.
	Own measure.Series `json:"own_shift" unit:"s"`

	// Distances of the log probabilities of the token after DistanceTokens from those of a
	// fully computed prompt: the mean of the 20 best.
	DistanceTokens int            `json:"distance_tokens"`
	MovedApart     measure.Series `json:"moved_apart"`
	OwnApart       measure.Series `json:"own_shift_apart"`
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

// movedLab is two servers for a chat that outgrows its context: Ollama without kvtier, and
// ours with reuse of moved text.
type movedLab struct {
	r            *rig
	plain, tiers *lab.Lab
	numCtx       int
}

// chat is a full context and the parts kept of it: one before the text that is left out, and
// one after that text, half of the rest. Ollama's own shift leaves out the same.
type chat struct {
	full  string
	kept  int // tokens kept before the part left out
	after []string
	words []string
}

// newChat makes a chat of a full context of whole words, a token each.
func newChat(full string) chat {
	words := strings.Fields(full)
	kept := len(words) / movedKeptShare
	return chat{full: full, kept: kept, words: words, after: words[kept+(len(words)-kept)/2:]}
}

// prompt is the kept text, and the next text.
func (c chat) prompt(next string) string {
	return " " + strings.Join(append(append([]string(nil), c.words[:c.kept]...), c.after...), " ") + next
}

// tokens counts the tokens of the kept text.
func (c chat) tokens() int { return c.kept + len(c.after) }

// measureMoved measures the reuse of text at another position, and Ollama's own shift: time
// to the first token, distance of log probabilities from those of a fully computed prompt,
// and recall.
func measureMoved(ctx context.Context, r *rig, s settings) (any, error) {
	t := &Moved{}
	long, short, samples := movedLong, movedShort, movedSamples*s.repetitions
	if s.quick {
		long, short, samples = 2*quickRestore, 2*quickRestore, 1
	}
	recall, err := models.Recall(r.dir, "kvtier-recall")
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name    string
		model   lab.Model
		numCtx  int
		times   int
		measure func(*movedLab) error
	}{
		{"time", r.model, long, s.repetitions, func(l *movedLab) error { return l.compare(ctx, t, true) }},
		{"log probabilities", r.model, short, samples, func(l *movedLab) error { return l.compare(ctx, t, false) }},
		{"recall", recall, short, samples, func(l *movedLab) error { return l.recall(ctx, t) }},
	} {
		o := lab.Options{Model: part.model, NumCtx: part.numCtx}
		if err := r.stock(ctx, o, func(plain *lab.Lab) error {
			o.Env = []string{"OLLAMA_KV_TIER_REUSE=shifted"}
			return r.fresh(ctx, o, func(tiers *lab.Lab, _ string) error {
				return r.repeat("moved, "+part.name, part.times, func(int) (string, error) {
					return "", part.measure(&movedLab{r, plain, tiers, part.numCtx})
				})
			})
		}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// ask sends a prompt to a server whose slot shares nothing with the prompt.
func (l *movedLab) ask(ctx context.Context, server *lab.Lab, prompt string, tokens, keep int) (lab.Answer, error) {
	if err := l.r.load(ctx, server); err != nil {
		return lab.Answer{}, err
	}
	return server.Ask(ctx, lab.Question{Prompt: prompt, Tokens: tokens, Raw: true, Logprobs: true, Top: movedTop, Keep: keep})
}

// own makes Ollama shift a full context during an answer, and returns the answer. The first
// token still sees the whole context, later tokens the part that the shift kept.
func (l *movedLab) own(ctx context.Context, c chat, tokens int) (lab.Answer, error) {
	answer, err := l.ask(ctx, l.plain, c.full, tokens, c.kept)
	switch {
	case err != nil:
		return answer, err
	case answer.PromptEvalCount != len(c.words):
		return answer, fmt.Errorf("a prompt of %d words has %d tokens", len(c.words), answer.PromptEvalCount)
	case len(answer.Logprobs) < 2:
		return answer, errHalfCharacter
	}
	return answer, nil
}

// errHalfCharacter reports an answer whose second token is the beginning of a character: Ollama
// does not send such a token when the answer ends there.
var errHalfCharacter = errors.New("the answer has no second token")

// ownChat makes chats until Ollama sends the token after its own shift.
func (l *movedLab) ownChat(ctx context.Context, t *Moved) (c chat, own lab.Answer, err error) {
	for range movedChats {
		c = newChat(l.r.prompt(l.numCtx))
		if own, err = l.own(ctx, c, 2); !errors.Is(err, errHalfCharacter) {
			break
		}
		t.Skipped++
	}
	return c, own, err
}

// moved stores the full context and asks with the kept parts.
func (l *movedLab) moved(ctx context.Context, c chat, prompt string, tokens int) (lab.Answer, error) {
	if _, err := l.ask(ctx, l.tiers, c.full, 1, 0); err != nil {
		return lab.Answer{}, err
	}
	answer, err := l.ask(ctx, l.tiers, prompt, tokens, 0)
	if err == nil && answer.Restored.Shifted < len(c.after)-2*lab.PageTokens {
		err = fmt.Errorf("%d tokens of %d were reused; the server's log (-log) says why", answer.Restored.Shifted, len(c.after))
	}
	return answer, err
}

// compare asks for the token after a context that lost a part: after Ollama's own shift,
// computed, and reused.
func (l *movedLab) compare(ctx context.Context, t *Moved, timed bool) error {
	c, own, err := l.ownChat(ctx, t)
	if err != nil {
		return err
	}
	prompt := c.prompt(own.Logprobs[0].Token)
	computed, err := l.ask(ctx, l.plain, prompt, 1, 0)
	if err != nil {
		return err
	}
	moved, err := l.moved(ctx, c, prompt, 1)
	if err != nil {
		return err
	}
	if timed {
		t.Tokens, t.Shifted = computed.PromptEvalCount, moved.Restored.Shifted
		t.Computed.AddSeconds(computed.Wait())
		t.Moved.AddSeconds(moved.Wait())
		t.Own.AddSeconds(own.EvalDuration)
		return nil
	}
	want, shifted, reused := computed.Logprobs[0], own.Logprobs[1], moved.Logprobs[0]
	if computed.PromptEvalCount != c.tokens()+1 || apart(want, shifted) == nobody {
		t.Skipped++ // the token's text encodes to another token, or is a part of a character
		return nil
	}
	t.OwnApart.Add(apart(want, shifted))
	t.MovedApart.Add(apart(want, reused))
	// The text without its beginning: the effect of leaving the beginning out altogether.
	alone, err := l.ask(ctx, l.plain, " "+strings.Join(c.after, " ")+own.Logprobs[0].Token, 1, 0)
	if err != nil {
		return err
	}
	t.WithoutKept.Add(apart(want, alone.Logprobs[0]))
	t.DistanceTokens = computed.PromptEvalCount
	return nil
}

// nobody is the distance of log probabilities without a common token.
const nobody = math.MaxFloat32

// apart is the mean distance of log probabilities, over the tokens among the best of both.
func apart(a, b api.Logprob) float64 {
	other := make(map[string]float64)
	for _, top := range b.TopLogprobs {
		other[top.Token] = top.Logprob
	}
	sum, n := 0.0, 0
	for _, top := range a.TopLogprobs {
		if logprob, ok := other[top.Token]; ok {
			sum += math.Abs(top.Logprob - logprob)
			n++
		}
	}
	if n == 0 {
		return nobody
	}
	return sum / float64(n)
}

// recall asks questions about the moved text.
func (l *movedLab) recall(ctx context.Context, t *Moved) error {
	l.r.seed++
	cut := l.numCtx/movedKeptShare + (l.numCtx-l.numCtx/movedKeptShare)/2
	at := cut + int(l.r.seed*97)%(l.numCtx-cut-2*lab.PageTokens)
	questions, err := testmodel.RecallPrompts(l.r.seed, l.numCtx, at)
	if err != nil {
		return err
	}
	q := questions[0]
	c := newChat(q.Prompt)
	own, err := l.own(ctx, c, testmodel.RecallAnswerTokens)
	if err != nil {
		return err
	}
	computed, err := l.ask(ctx, l.plain, c.prompt(""), testmodel.RecallAnswerTokens, 0)
	if err != nil {
		return err
	}
	moved, err := l.moved(ctx, c, c.prompt(""), testmodel.RecallAnswerTokens)
	if err != nil {
		return err
	}
	t.Recall.Asked++
	for _, side := range []struct {
		answer lab.Answer
		count  *int
	}{{own, &t.Recall.Own}, {computed, &t.Recall.Computed}, {moved, &t.Recall.Moved}} {
		if side.answer.Text == q.Answer {
			*side.count++
		}
	}
	return nil
}
