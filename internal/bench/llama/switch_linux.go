package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/llamatest"
)

// switches is many conversations on one slot.
type switches struct {
	Conversations int       `json:"conversations"`
	Tokens        int       `json:"tokens"`
	Stock         switching `json:"stock"`
	RAM           switching `json:"cache-ram"`
	Ours          switching `json:"ours"`
}

// switching is one side.
type switching struct {
	First  measure.Series `json:"first_token" unit:"s"` // after a switch
	Memory int64          `json:"memory"`               // the most bytes that all processes took
}

// measureSwitch asks each of many conversations once, and then each one's next turn.
func (b *bench) measureSwitch(ctx context.Context) (any, error) {
	r := &switches{Conversations: b.conversations, Tokens: b.length}
	var conversations [][]int32
	for range b.conversations {
		conversations = append(conversations, b.tokens(b.length))
	}
	for _, c := range []struct {
		side side
		into *switching
	}{{stock, &r.Stock}, {ram, &r.RAM}, {ours, &r.Ours}} {
		if err := b.Step(fmt.Sprintf("switch, %s", c.side), func() (string, error) {
			err := b.switches(ctx, c.side, conversations, c.into)
			return show.Number(c.into.First.Median, "s"), err
		}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// switches measures one side. Of the stock server two switches are enough: each one computes all tokens.
func (b *bench) switches(ctx context.Context, s side, conversations [][]int32, into *switching) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	if s == stock {
		conversations = conversations[:min(2, len(conversations))]
	}
	return b.on(ctx, s, served{tokens: b.length}, func(server *llamatest.Server) error {
		most := measure.Most(memoryEvery, func() int64 {
			n, _ := server.Memory() // 0 where a process has just ended
			return n
		})
		defer func() { into.Memory = most() }()
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
		}
		return nil
	})
}

// memoryEvery is the time between two looks at the memory.
const memoryEvery = 20 * time.Millisecond
