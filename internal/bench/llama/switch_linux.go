package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/llamatest"
)

// measureSwitch asks each of many conversations once, and then each one's next turn.
func (b *bench) measureSwitch(ctx context.Context) error {
	r := &Switch{Conversations: b.settings.conversations, Tokens: b.settings.length}
	b.report.Switch = r
	var conversations [][]int32
	for range b.settings.conversations {
		conversations = append(conversations, b.tokens(b.settings.length))
	}
	for _, s := range []side{stock, ram, ours} {
		step := b.steps.Step(fmt.Sprintf("switch, %s", s))
		into := map[side]*Switching{stock: &r.Stock, ram: &r.RAM, ours: &r.Ours}[s]
		err := b.switches(ctx, s, conversations, into)
		step.End(into.First.last(), err)
		if err != nil {
			return err
		}
	}
	return nil
}

// switches measures one side. Of the stock server two switches are enough: each one computes
// all tokens.
func (b *bench) switches(ctx context.Context, s side, conversations [][]int32, into *Switching) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	if s == stock {
		conversations = conversations[:min(2, len(conversations))]
	}
	server, err := b.start(ctx, s, b.settings.length)
	if err != nil {
		return err
	}
	defer server.Kill()
	stop := watchMemory(server, into)
	defer stop()
	for _, c := range conversations {
		if _, err := server.Complete(ctx, c, answer); err != nil {
			return err
		}
	}
	for _, c := range conversations {
		a, err := server.Complete(ctx, slices.Concat(c, b.tokens(answer)), answer)
		if err != nil {
			return err
		}
		into.First.AddSeconds(a.First)
		into.Reused += a.Timings.Cached
	}
	if s != ours {
		return nil
	}
	pages, err := lab.Pages(b.root())
	if err != nil {
		return err
	}
	read, err := measure.ReadFiles(pages)
	b.report.Switch.Reading = read.Took.Seconds() / float64(len(conversations))
	return err
}

// memoryEvery is the time between two looks at the memory.
const memoryEvery = 20 * time.Millisecond

// watchMemory notes the most memory that a server takes, until the caller calls stop.
func watchMemory(server *llamatest.Server, into *Switching) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(memoryEvery)
		defer ticks.Stop()
		for {
			if n, err := server.Memory(); err == nil {
				into.Memory = max(into.Memory, n)
			}
			select {
			case <-ticks.C:
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
