package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
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
// repetition both servers do the same.
type gaps struct {
	Usual   measure.Series `json:"p99"`     // ours over stock
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
	for n := range b.settings.repetitions {
		err := b.step(fmt.Sprintf("gaps, %d of %d", n+1, b.settings.repetitions), func() (string, error) {
			var found [2][]time.Duration
			watch := func(i int, s side) func() error {
				return func() (err error) { found[i], err = b.watchGaps(ctx, s, model); return err }
			}
			if err := measure.InTurns(n, watch(0, stock), watch(1, ours)); err != nil {
				return "", err
			}
			at := func(i int, part float64) float64 { return found[i][int(part*float64(len(found[i])-1))].Seconds() }
			r.Usual.Add(at(1, 0.99) / at(0, 0.99))
			r.Longest.Add(at(1, 1) / at(0, 1))
			r.Stock.Add(at(0, 1))
			return fmt.Sprintf("%.2f of stock's at p99", r.Usual.Values[n]), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// watchGaps returns the times between tokens, the shortest first.
func (b *bench) watchGaps(ctx context.Context, s side, model string) (found []time.Duration, err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	server, err := b.startSlots(ctx, s, model, 2, 2*(gapsChat+gapsAnswer), max(1, runtime.NumCPU()-1))
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	chatting, stop := context.WithCancel(ctx)
	defer stop()
	prompt, done := b.tokens(gapsTurn), make(chan error, 1)
	go func() { done <- b.chatBeside(chatting, server) }()
	a, err := server.Complete(ctx, prompt, gapsAnswer)
	stop()
	if err = errors.Join(err, <-done); err != nil {
		return nil, err
	}
	slices.Sort(a.Gaps)
	return a.Gaps, nil
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
