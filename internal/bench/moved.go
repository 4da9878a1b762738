package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
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

// movedLab is two servers for a chat that outgrows its context: Ollama without kvtier, and
// ours with reuse of moved text.
type movedLab struct {
	b            *bench
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
func (b *bench) measureMoved(ctx context.Context) error {
	r := &Moved{}
	b.report.Moved = r
	long, short, samples := movedLong, movedShort, movedSamples*b.settings.repetitions
	if b.settings.quick {
		long, short, samples = 2*quickRestore, 2*quickRestore, 1
	}
	recall, err := models.Recall(b.dir, "kvtier-recall")
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		model   lab.Model
		numCtx  int
		times   int
		measure func(*movedLab, context.Context) error
	}{
		{"time", b.model, long, b.settings.repetitions, func(l *movedLab, ctx context.Context) error { return l.compare(ctx, r, true) }},
		{"log probabilities", b.model, short, samples, func(l *movedLab, ctx context.Context) error { return l.compare(ctx, r, false) }},
		{"recall", recall, short, samples, func(l *movedLab, ctx context.Context) error { return l.recall(ctx, r) }},
	} {
		if err := b.withMovedLab(ctx, part.model, part.numCtx, func(l *movedLab) error {
			for i := range part.times {
				step := b.steps.Step(fmt.Sprintf("moved, %s, %d of %d", part.name, i+1, part.times))
				if err := part.measure(l, ctx); err != nil {
					step.End("", err)
					return err
				}
				step.End("", nil)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// withMovedLab starts both servers.
func (b *bench) withMovedLab(ctx context.Context, model lab.Model, numCtx int, use func(*movedLab) error) (err error) {
	plain, err := b.start(ctx, lab.Options{Binary: b.settings.stock, Model: model, NumCtx: numCtx})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	tiers, err := b.start(ctx, lab.Options{
		Model: model, NumCtx: numCtx, Root: filepath.Join(b.dir, fmt.Sprint("moved-", model.Name, numCtx)),
		Env: []string{"OLLAMA_KV_TIER_REUSE=shifted"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tiers.Close()) }()
	if b.report.Versions.Kvtier, err = tiers.Version(ctx); err != nil {
		return err
	}
	return use(&movedLab{b, plain, tiers, numCtx})
}

// ask sends a prompt to a server whose slot shares nothing with the prompt.
func (l *movedLab) ask(ctx context.Context, server *lab.Lab, prompt string, tokens, keep int) (lab.Answer, error) {
	if _, err := l.b.askShort(ctx, server, l.b.prompt(shortPrompt)); err != nil {
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
func (l *movedLab) ownChat(ctx context.Context, r *Moved) (c chat, own lab.Answer, err error) {
	for range movedChats {
		c = newChat(l.b.prompt(l.numCtx))
		if own, err = l.own(ctx, c, 2); !errors.Is(err, errHalfCharacter) {
			break
		}
		r.Skipped++
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
func (l *movedLab) compare(ctx context.Context, r *Moved, timed bool) error {
	c, own, err := l.ownChat(ctx, r)
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
		r.Tokens, r.Shifted = computed.PromptEvalCount, moved.Restored.Shifted
		r.Computed.AddSeconds(computed.Wait())
		r.Moved.AddSeconds(moved.Wait())
		r.Own.AddSeconds(own.EvalDuration)
		return nil
	}
	want, shifted, reused := computed.Logprobs[0], own.Logprobs[1], moved.Logprobs[0]
	if computed.PromptEvalCount != c.tokens()+1 || apart(want, shifted) == nobody {
		r.Skipped++ // the token's text encodes to another token, or is a part of a character
		return nil
	}
	r.OwnApart.Add(apart(want, shifted))
	r.MovedApart.Add(apart(want, reused))
	r.Between.Add(apart(shifted, reused))
	// The text without its beginning: the effect of leaving the beginning out altogether.
	alone, err := l.ask(ctx, l.plain, " "+strings.Join(c.after, " ")+own.Logprobs[0].Token, 1, 0)
	if err != nil {
		return err
	}
	r.WithoutKept.Add(apart(want, alone.Logprobs[0]))
	r.DistanceTokens = computed.PromptEvalCount
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
func (l *movedLab) recall(ctx context.Context, r *Moved) error {
	l.b.seed++
	cut := l.numCtx/movedKeptShare + (l.numCtx-l.numCtx/movedKeptShare)/2
	at := cut + int(l.b.seed*97)%(l.numCtx-cut-2*lab.PageTokens)
	questions, err := testmodel.RecallPrompts(l.b.seed, l.numCtx, at)
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
	r.Recall.Asked++
	for _, side := range []struct {
		answer lab.Answer
		count  *int
	}{{own, &r.Recall.Own}, {computed, &r.Recall.Computed}, {moved, &r.Recall.Moved}} {
		if side.answer.Text == q.Answer {
			*side.count++
		}
	}
	return nil
}
