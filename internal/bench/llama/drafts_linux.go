package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

// Lengths of drafts, in bytes of text and tokens.
const (
	draftsText   = 6_000
	draftsTurn   = 20
	draftsAnswer = 128
)

// drafts is the part of drafted tokens that were right. A trained model drafts for itself, so that all would
// be if it knew the whole prompt.
type drafts struct {
	AnswerTokens int            `json:"answer_tokens"`
	Hot          measure.Series `json:"hot"`      // the slot holds the prompt before
	Restored     measure.Series `json:"restored"` // the server was killed
}

// measureDrafts asks for an answer twice, each time with another text.
func (b *bench) measureDrafts(ctx context.Context) (any, error) {
	r := &drafts{AnswerTokens: draftsAnswer}
	model, err := trained.Write(b.dir)
	if err != nil {
		return nil, err
	}
	prose := trained.Prose()
	err = b.Repeat("drafts", b.repetitions, func(n int) (string, error) {
		text := prose[n*500%(len(prose)-draftsText-draftsTurn):][:draftsText+draftsTurn]
		hot, err := b.acceptance(ctx, model, text, false)
		if err != nil {
			return "", err
		}
		restored, err := b.acceptance(ctx, model, text, true)
		r.Hot.Add(hot)
		r.Restored.Add(restored)
		return fmt.Sprintf("%.2f of them right after a restore, %.2f before", restored, hot), err
	})
	return r, err
}

// acceptance answers the beginning of a text and then all of it, and returns the part of drafts in the
// second answer that were right.
func (b *bench) acceptance(ctx context.Context, model, text string, kill bool) (part float64, err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	m := served{model: model, tokens: trained.ContextTokens - 1024, threads: 1,
		// Weights in the order of AMX are no draft model's in llama.cpp b10970.
		args: strings.Fields("-md " + model + " --spec-type draft-simple --spec-draft-n-max 4 -nr")}
	var a llamatest.Answer
	second := func(server *llamatest.Server) (err error) {
		a, err = server.Complete(ctx, text, draftsAnswer)
		return err
	}
	err = b.on(ctx, ours, m, func(server *llamatest.Server) error {
		_, err := server.Complete(ctx, text[:draftsText], draftsAnswer)
		if err != nil || kill {
			return err
		}
		return second(server)
	})
	if err == nil && kill {
		err = b.on(ctx, ours, m, second)
	}
	switch {
	case err != nil:
	case a.Timings.Drafted == 0:
		err = errors.New("no token was drafted")
	case a.Timings.Cached < a.Timings.Computed:
		err = errors.New("the slot does not hold the prompt before")
	}
	if err != nil {
		return 0, err
	}
	return float64(a.Timings.Accepted) / float64(a.Timings.Drafted), nil
}
