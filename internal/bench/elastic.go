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

// Elastic compares the K/V cache with elastic memory and without.
type Elastic struct {
	Slots   int         `json:"slots"`
	Context int         `json:"context"` // of a slot, in tokens
	Prompt  int         `json:"prompt_tokens"`
	KVBytes int64       `json:"kv_bytes" unit:"B"` // of all slots' contexts
	Off     ElasticSide `json:"off"`
	On      ElasticSide `json:"on"`
	// Ratios are those of on over off, per repetition.
	Load    measure.Series `json:"load_ratio"`
	Prefill measure.Series `json:"prefill_ratio"`
	Decode  measure.Series `json:"decode_ratio"`
	Turns   measure.Series `json:"turns_ratio"`
	At      measure.Series `json:"at_a_time_ratio"`
}

// ElasticSide is one side. Memory is the runner's anonymous memory in bytes: with a conversation of a
// few tokens, with one prompt, and with short conversations in all slots after that.
type ElasticSide struct {
	Load    measure.Series `json:"load_seconds" unit:"s"`
	Idle    measure.Series `json:"idle_bytes" unit:"B"`
	Used    measure.Series `json:"used_bytes" unit:"B"`
	Left    measure.Series `json:"left_bytes" unit:"B"`
	Prefill measure.Series `json:"prefill_tokens_per_second" unit:"/s"`
	Decode  measure.Series `json:"decode_tokens_per_second" unit:"/s"`
	Turns   measure.Series `json:"turns_seconds" unit:"s"`
	At      measure.Series `json:"at_a_time_seconds" unit:"s"`
}

// measureElastic starts both sides in turns, with the same prompts.
func measureElastic(ctx context.Context, r *rig) (any, error) {
	t := &Elastic{
		Slots: elasticSlots, Context: elasticContext, Prompt: elasticPrompt,
		KVBytes: elasticSlots * elasticContext * r.shape.KVBytesPerToken(),
	}
	err := r.Repeat("elastic", r.repetitions, func(i int) (string, error) {
		seed := r.seed
		side := func(to *ElasticSide, on int) func() error {
			o := lab.Options{
				NumCtx: elasticContext, Threads: threadsButOne(),
				Env: []string{fmt.Sprint("OLLAMA_KVCACHED=", on), fmt.Sprint("OLLAMA_NUM_PARALLEL=", elasticSlots), "OLLAMA_FLASH_ATTENTION=1"},
			}
			return func() error {
				r.seed = seed
				return r.serve(ctx, o, func(l *lab.Lab) error { return to.measure(ctx, r, l) })
			}
		}
		err := measure.InTurns(i, side(&t.Off, 0), side(&t.On, 1))
		if err != nil {
			return "", err
		}
		for _, s := range []struct{ ratio, on, off *measure.Series }{
			{&t.Load, &t.On.Load, &t.Off.Load}, {&t.Prefill, &t.On.Prefill, &t.Off.Prefill}, {&t.Decode, &t.On.Decode, &t.Off.Decode},
			{&t.Turns, &t.On.Turns, &t.Off.Turns}, {&t.At, &t.On.At, &t.Off.At},
		} {
			s.ratio.Add(s.on.Values[i] / s.off.Values[i])
		}
		return fmt.Sprintf("%s of the memory", show.Percent(t.On.Idle.Median/t.Off.Idle.Median)), nil
	})
	return t, err
}

func (side *ElasticSide) measure(ctx context.Context, r *rig, l *lab.Lab) error {
	a, err := r.ask(ctx, l, r.prompt(16), 1)
	if err != nil {
		return err
	}
	side.Load.AddSeconds(a.LoadDuration)
	if err := addMemory(&side.Idle, l); err != nil {
		return err
	}
	if a, err = r.ask(ctx, l, r.prompt(elasticPrompt), elasticAnswer); err != nil {
		return err
	}
	side.Prefill.Add(prefillSpeed(a))
	side.Decode.Add(decodeSpeed(a))
	if err := addMemory(&side.Used, l); err != nil {
		return err
	}
	for range 2 * elasticSlots {
		if _, err := r.ask(ctx, l, r.prompt(16), 1); err != nil {
			return err
		}
	}
	time.Sleep(elasticRest)
	if err := addMemory(&side.Left, l); err != nil {
		return err
	}
	return side.measureLoad(ctx, r, l)
}

// measureLoad times a conversation of several turns, and prompts in all slots at a time.
func (side *ElasticSide) measureLoad(ctx context.Context, r *rig, l *lab.Lab) error {
	began, text := time.Now(), ""
	for range elasticTurns {
		text += r.prompt(elasticTurn)
		a, err := r.ask(ctx, l, text, elasticTurnAnswer)
		if err != nil {
			return err
		}
		text += a.Text
	}
	side.Turns.AddSeconds(time.Since(began))

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
	side.At.AddSeconds(time.Since(began))
	return err
}

var anonymous = regexp.MustCompile(`(?m)^RssAnon:\s+(\d+) kB$`)

// addMemory adds the anonymous memory of the server's runner.
func addMemory(to *measure.Series, l *lab.Lab) error {
	runners, err := l.Runners()
	if err != nil {
		return err
	}
	if len(runners) != 1 {
		return fmt.Errorf("measure the runner's memory: there are %d runners", len(runners))
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", runners[0]))
	if err != nil {
		return fmt.Errorf("measure the runner's memory, which needs Linux: %w", err)
	}
	m := anonymous.FindSubmatch(status)
	if m == nil {
		return errors.New("measure the runner's memory: the system does not tell it")
	}
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	to.Add(kb * 1024)
	return err
}
