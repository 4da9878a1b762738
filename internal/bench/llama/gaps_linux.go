package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Lengths of gaps, in tokens.
const (
	gapsAnswer = 1024 // of the slot that is watched
	gapsChat   = 4096 // of each chat in the other one, at first
	gapsTurn   = 200  // by which a chat grows
	gapsChats  = 3    // that take turns
)

// thinks is the time between two turns of a chat: an idle slot is saved meanwhile.
const thinks = 2500 * time.Millisecond

// gaps are times between tokens of a long answer while chats take turns in another slot. In each
// repetition both servers do the same; the stock one has its cache in memory, as by default.
//
// One token in a hundred waits for a prompt of a chat, hundreds of milliseconds, and others wait for ten at most:
// so the 99th percentile of a single answer may be on either side of that step. It is taken of all answers.
type gaps struct {
	Usual   float64        `json:"p99"`     // of all gaps, ours over stock
	Answer  measure.Series `json:"answer"`  // time of the answer, ours over stock
	Longest measure.Series `json:"longest"` // ours over stock
	Stock   measure.Series `json:"longest_of_stock" unit:"s"`
}

// measureGaps has a stock server and ours answer, one after the other.
func (b *bench) measureGaps(ctx context.Context) (any, error) {
	r := &gaps{}
	model := filepath.Join(b.dir, "gaps.gguf")
	shape := testmodel.Shape{Arch: b.shape.Arch, Context: trainedContext, Embed: 768, Heads: 12}
	if err := testmodel.Write(model, shape.WithDefaults()); err != nil {
		return nil, err
	}
	var all struct{ stock, ours []time.Duration }
	at := func(gaps []time.Duration, part float64) float64 {
		slices.Sort(gaps)
		return gaps[int(part*float64(len(gaps)-1))].Seconds()
	}
	err := b.Repeat("gaps", b.repetitions, func(n int) (string, error) {
		of, mine, err := measure.Pair(n, func() ([]time.Duration, error) { return b.watchGaps(ctx, ram, model) },
			func() ([]time.Duration, error) { return b.watchGaps(ctx, ours, model) })
		if err != nil {
			return "", err
		}
		all.stock, all.ours = append(all.stock, of...), append(all.ours, mine...)
		r.Usual = at(all.ours, 0.99) / at(all.stock, 0.99)
		r.Answer.Add(sum(mine).Seconds() / sum(of).Seconds())
		r.Longest.Add(at(mine, 1) / at(of, 1))
		r.Stock.Add(at(of, 1))
		return fmt.Sprintf("%.2f of stock's at p99 so far", r.Usual), nil
	})
	return r, err
}

func sum(gaps []time.Duration) (all time.Duration) {
	for _, gap := range gaps {
		all += gap
	}
	return all
}

// watchGaps returns the times between tokens.
func (b *bench) watchGaps(ctx context.Context, s side, model string) (found []time.Duration, err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	m := served{model: model, slots: 2, tokens: 2 * (gapsChat + gapsAnswer), threads: oneThreadLess()}
	err = b.on(ctx, s, m, func(server *llamatest.Server) error {
		chatting, stop := context.WithCancel(ctx)
		defer stop()
		prompt, done := b.tokens(gapsTurn), make(chan error, 1)
		go func() { done <- b.chatBeside(chatting, server) }()
		a, err := server.Complete(ctx, prompt, gapsAnswer)
		stop()
		found = a.Gaps
		return errors.Join(err, <-done)
	})
	return found, err
}

// chatBeside has chats take turns until ctx ends.
func (b *bench) chatBeside(ctx context.Context, server *llamatest.Server) error {
	var chats [gapsChats][]int32
	for turn := 0; ; turn++ {
		chat := &chats[turn%gapsChats]
		more := gapsTurn
		if len(*chat) == 0 || len(*chat)+more > gapsChat+gapsAnswer {
			*chat, more = nil, gapsChat
		}
		*chat = append(*chat, b.tokens(more)...)
		_, err := server.Complete(ctx, *chat, 1)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(thinks):
		}
	}
}
