package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
)

const (
	movedTokens    = 8192 // of the full context
	movedKeptShare = 16   // 1/16 of a context is kept before the part left out
	movedChats     = 20   // at most so many in place of chats whose answer ends within a character
)

// Moved is the time of reusing text at another position (OLLAMA_KV_TIER_REUSE=shifted): the prompt of
// a chat that outgrew its context and lost half of it after its first 16th. [Near] has its quality.
type Moved struct {
	Tokens   int            `json:"tokens"` // of the prompt
	Shifted  int            `json:"shifted_tokens"`
	Computed measure.Series `json:"computed" unit:"s"` // to the first token
	Moved    measure.Series `json:"moved" unit:"s"`
	// Own is the time of Ollama's own shift and of one token, without a prompt.
	Own measure.Series `json:"own_shift" unit:"s"`
}

// measureMoved compares Ollama without kvtier and ours, which reuses moved text.
func measureMoved(ctx context.Context, r *rig) (any, error) {
	t, o := &Moved{}, lab.Options{NumCtx: movedTokens}
	if r.quick {
		o.NumCtx = 2 * quickRestore
	}
	err := r.stock(ctx, o, func(plain *lab.Lab) error {
		o.Env = []string{"OLLAMA_KV_TIER_REUSE=shifted"}
		return r.fresh(ctx, o, func(tiers *lab.Lab, _ string) error {
			return r.Repeat("moved", r.repetitions, func(int) (string, error) {
				err := t.once(ctx, r, plain, tiers, o.NumCtx)
				return fmt.Sprintf("computed %s, moved %s", last(t.Computed), last(t.Moved)), err
			})
		})
	})
	return t, err
}

// once asks for the token after a full context that lost a part: after Ollama's own shift, computed,
// and reused.
func (t *Moved) once(ctx context.Context, r *rig, plain, tiers *lab.Lab, numCtx int) error {
	full, own, err := ownShift(ctx, r, plain, numCtx)
	if err != nil {
		return err
	}
	words := strings.Fields(full)
	kept := len(words) / movedKeptShare
	after := words[kept+(len(words)-kept)/2:] // Ollama's own shift leaves out the same
	prompt := " " + strings.Join(append(words[:kept:kept], after...), " ") + own.Logprobs[0].Token
	computed, err := askAlone(ctx, r, plain, lab.Question{Prompt: prompt, Tokens: 1})
	if err != nil {
		return err
	}
	if _, err := askAlone(ctx, r, tiers, lab.Question{Prompt: full, Tokens: 1}); err != nil { // stores it
		return err
	}
	moved, err := askAlone(ctx, r, tiers, lab.Question{Prompt: prompt, Tokens: 1})
	if err != nil {
		return err
	}
	if n := moved.Restored.Shifted; n < len(after)-2*lab.PageTokens {
		return fmt.Errorf("%d tokens of %d were reused; the server's log (-log) says why", n, len(after))
	}
	t.Tokens, t.Shifted = computed.PromptEvalCount, moved.Restored.Shifted
	t.Computed.AddSeconds(computed.Wait())
	t.Moved.AddSeconds(moved.Wait())
	t.Own.AddSeconds(own.EvalDuration)
	return nil
}

// ownShift makes Ollama shift a full context of whole words, a token each, during an answer. The
// first token still sees the whole context, the second what the shift kept: Ollama sends none where
// the answer ends within a character, and another context takes its place.
func ownShift(ctx context.Context, r *rig, plain *lab.Lab, numCtx int) (full string, own lab.Answer, err error) {
	for range movedChats {
		full = r.prompt(numCtx)
		own, err = askAlone(ctx, r, plain, lab.Question{Prompt: full, Tokens: 2, Keep: numCtx / movedKeptShare})
		if err == nil && own.PromptEvalCount != numCtx {
			err = fmt.Errorf("a prompt of %d words has %d tokens", numCtx, own.PromptEvalCount)
		}
		if err != nil || len(own.Logprobs) == 2 {
			return full, own, err
		}
	}
	return full, own, errors.New("no answer has a second token")
}

// askAlone asks a server whose slot shares nothing with the prompt.
func askAlone(ctx context.Context, r *rig, l *lab.Lab, q lab.Question) (lab.Answer, error) {
	if err := r.load(ctx, l); err != nil {
		return lab.Answer{}, err
	}
	q.Raw, q.Logprobs = true, true
	return l.Ask(ctx, q)
}
