package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

const (
	elasticSlots   = 8
	elasticContext = 32768
	elasticPrompt  = 2048
	elasticAnswer  = 128
	// A conversation of elasticTurns turns, each of which adds elasticTurn tokens and their answer; and as
	// many prompts of elasticTurns × elasticTurn tokens at a time as there are slots.
	elasticTurns      = 10
	elasticTurn       = 100
	elasticTurnAnswer = 24
	// elasticRest is longer than the runner takes to give unused memory back.
	elasticRest = 2 * time.Second
)

// Elastic compares the K/V cache with elastic memory and without. Memory is the runner's anonymous
// memory in bytes: with a conversation of a few tokens (idle), with one prompt (used), and with short
// conversations in all slots after that (left).
type Elastic struct {
	Slots   int                `json:"slots"`
	Context int                `json:"context"` // of a slot, in tokens
	Prompt  int                `json:"prompt_tokens"`
	KVBytes int64              `json:"kv_bytes" unit:"B"` // of all slots' contexts
	Load    measure.SideBySide `json:"load" unit:"s"`
	Idle    measure.SideBySide `json:"idle" unit:"B"`
	Used    measure.SideBySide `json:"used" unit:"B"`
	Left    measure.SideBySide `json:"left" unit:"B"`
	Prefill measure.SideBySide `json:"prefill" unit:"/s"`
	Decode  measure.SideBySide `json:"decode" unit:"/s"`
	Turns   measure.SideBySide `json:"turns" unit:"s"`
	At      measure.SideBySide `json:"at_a_time" unit:"s"`
}

// elasticSide is one run of one side: a value for each field of [Elastic].
type elasticSide struct{ load, idle, used, left, prefill, decode, turns, at float64 }

// measureElastic starts both sides in turns, with the same prompts.
func measureElastic(ctx context.Context, r *rig) (any, error) {
	t := &Elastic{
		Slots: elasticSlots, Context: elasticContext, Prompt: elasticPrompt,
		KVBytes: elasticSlots * elasticContext * r.shape.KVBytesPerToken(),
	}
	err := r.Repeat("elastic", r.repetitions, func(i int) (string, error) {
		seed := r.seed
		side := func(on int) func() (elasticSide, error) {
			o := lab.Options{
				NumCtx: elasticContext, Threads: threadsButOne(),
				Env: []string{fmt.Sprint("OLLAMA_KVCACHED=", on), fmt.Sprint("OLLAMA_NUM_PARALLEL=", elasticSlots), "OLLAMA_FLASH_ATTENTION=1"},
			}
			return func() (side elasticSide, err error) {
				r.seed = seed
				err = r.serve(ctx, o, func(l *lab.Lab) error { return side.measure(ctx, r, l) })
				return side, err
			}
		}
		off, on, err := measure.Pair(i, side(0), side(1))
		if err != nil {
			return "", err
		}
		t.Load.Add(off.load, on.load)
		t.Idle.Add(off.idle, on.idle)
		t.Used.Add(off.used, on.used)
		t.Left.Add(off.left, on.left)
		t.Prefill.Add(off.prefill, on.prefill)
		t.Decode.Add(off.decode, on.decode)
		t.Turns.Add(off.turns, on.turns)
		t.At.Add(off.at, on.at)
		return fmt.Sprintf("%s of the memory", show.Percent(t.Idle.Ratio.Median)), nil
	})
	return t, err
}

func (side *elasticSide) measure(ctx context.Context, r *rig, l *lab.Lab) error {
	a, err := r.ask(ctx, l, r.prompt(16), 1)
	if err != nil {
		return err
	}
	side.load = a.LoadDuration.Seconds()
	if side.idle, err = anonymousMemory(l); err != nil {
		return err
	}
	if a, err = r.ask(ctx, l, r.prompt(elasticPrompt), elasticAnswer); err != nil {
		return err
	}
	side.prefill, side.decode = prefillSpeed(a), decodeSpeed(a)
	if side.used, err = anonymousMemory(l); err != nil {
		return err
	}
	for range 2 * elasticSlots {
		if _, err := r.ask(ctx, l, r.prompt(16), 1); err != nil {
			return err
		}
	}
	time.Sleep(elasticRest)
	if side.left, err = anonymousMemory(l); err != nil {
		return err
	}
	return side.measureLoad(ctx, r, l)
}

// measureLoad times a conversation of several turns, and prompts in all slots at a time.
func (side *elasticSide) measureLoad(ctx context.Context, r *rig, l *lab.Lab) error {
	began, text := time.Now(), ""
	for range elasticTurns {
		text += r.prompt(elasticTurn)
		a, err := r.ask(ctx, l, text, elasticTurnAnswer)
		if err != nil {
			return err
		}
		text += a.Text
	}
	side.turns = time.Since(began).Seconds()

	began = time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range elasticSlots {
		prompt := r.prompt(elasticTurns * elasticTurn)
		group.Go(func() error {
			_, err := r.ask(ctx, l, prompt, elasticTurnAnswer)
			return err
		})
	}
	err := group.Wait()
	side.at = time.Since(began).Seconds()
	return err
}

var anonymous = regexp.MustCompile(`(?m)^RssAnon:\s+(\d+) kB$`)

// anonymousMemory is that of the server's runner, in bytes.
func anonymousMemory(l *lab.Lab) (float64, error) {
	runners, err := l.Runners()
	if err != nil {
		return 0, err
	}
	if len(runners) != 1 {
		return 0, fmt.Errorf("measure the runner's memory: there are %d runners", len(runners))
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", runners[0]))
	if err != nil {
		return 0, fmt.Errorf("measure the runner's memory, which needs Linux: %w", err)
	}
	m := anonymous.FindSubmatch(status)
	if m == nil {
		return 0, errors.New("measure the runner's memory: the system does not tell it")
	}
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	return kb * 1024, err
}
