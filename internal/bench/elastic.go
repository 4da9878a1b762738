package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
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
	KVBytes int64       `json:"kv_bytes"` // of all slots' contexts
	Off     ElasticSide `json:"off"`
	On      ElasticSide `json:"on"`
	// Ratios are those of on over off, per repetition.
	Load    measure.Series `json:"load_ratio"`
	Prefill measure.Series `json:"prefill_ratio"`
	Decode  measure.Series `json:"decode_ratio"`
	Turns   measure.Series `json:"turns_ratio"`
	At      measure.Series `json:"at_a_time_ratio"`
	Commit  Commit         `json:"commit"`
}

// ElasticSide is one side. Memory is the runner's anonymous memory in bytes: with a conversation of a
// few tokens, with one prompt, and with short conversations in all slots after that.
type ElasticSide struct {
	Load    measure.Series `json:"load_seconds"`
	Idle    measure.Series `json:"idle_bytes"`
	Used    measure.Series `json:"used_bytes"`
	Left    measure.Series `json:"left_bytes"`
	Prefill measure.Series `json:"prefill_tokens_per_second"`
	Decode  measure.Series `json:"decode_tokens_per_second"`
	Turns   measure.Series `json:"turns_seconds"`
	At      measure.Series `json:"at_a_time_seconds"`
}

// measureElastic starts both sides in turns.
func (b *bench) measureElastic(ctx context.Context) error {
	r := &Elastic{
		Slots: elasticSlots, Context: elasticContext, Prompt: elasticPrompt,
		KVBytes: elasticSlots * elasticContext * b.shape.KVBytesPerToken(),
	}
	b.report.Elastic = r
	step := b.steps.Step(fmt.Sprintf("elastic, %d times", b.settings.repetitions))
	for i := range b.settings.repetitions {
		sides := []struct {
			to  *ElasticSide
			env string
		}{{&r.Off, "OLLAMA_KVCACHED=0"}, {&r.On, "OLLAMA_KVCACHED=1"}}
		if i%2 > 0 {
			sides[0], sides[1] = sides[1], sides[0]
		}
		seed := b.seed
		for _, side := range sides {
			b.seed = seed // both sides have the same prompts
			if err := b.measureElasticSide(ctx, side.to, side.env); err != nil {
				step.End("", err)
				return err
			}
		}
		for _, s := range []struct{ ratio, on, off *measure.Series }{
			{&r.Load, &r.On.Load, &r.Off.Load}, {&r.Prefill, &r.On.Prefill, &r.Off.Prefill}, {&r.Decode, &r.On.Decode, &r.Off.Decode},
			{&r.Turns, &r.On.Turns, &r.Off.Turns}, {&r.At, &r.On.At, &r.Off.At},
		} {
			s.ratio.Add(s.on.Values[i] / s.off.Values[i])
		}
	}
	if err := r.Commit.measure(b.shape, r.On.Prefill.Median); err != nil {
		step.End("", err)
		return err
	}
	step.End(fmt.Sprintf("%s of the memory", show.Percent(r.On.Idle.Median/r.Off.Idle.Median)), nil)
	return nil
}

func (b *bench) measureElasticSide(ctx context.Context, side *ElasticSide, env string) (err error) {
	l, err := b.start(ctx, lab.Options{
		Model: b.model, NumCtx: elasticContext, Threads: max(1, runtime.NumCPU()-1),
		Env: []string{env, fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", elasticSlots), "OLLAMA_FLASH_ATTENTION=1"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	a, err := b.ask(ctx, l, b.prompt(16), 1)
	if err != nil {
		return err
	}
	side.Load.AddSeconds(a.LoadDuration)
	if err := addMemory(&side.Idle, l); err != nil {
		return err
	}
	if a, err = b.ask(ctx, l, b.prompt(elasticPrompt), elasticAnswer); err != nil {
		return err
	}
	side.Prefill.Add(prefillSpeed(a))
	side.Decode.Add(decodeSpeed(a))
	if err := addMemory(&side.Used, l); err != nil {
		return err
	}
	for range 2 * elasticSlots {
		if _, err := b.ask(ctx, l, b.prompt(16), 1); err != nil {
			return err
		}
	}
	time.Sleep(elasticRest)
	if err := addMemory(&side.Left, l); err != nil {
		return err
	}
	return b.measureElasticLoad(ctx, side, l)
}

// measureElasticLoad times a conversation of several turns, and prompts in all slots at a time.
func (b *bench) measureElasticLoad(ctx context.Context, side *ElasticSide, l *lab.Lab) error {
	began, text := time.Now(), ""
	for range elasticTurns {
		text += b.prompt(elasticTurn)
		a, err := b.ask(ctx, l, text, elasticTurnAnswer)
		if err != nil {
			return err
		}
		text += a.Text
	}
	side.Turns.AddSeconds(time.Since(began))

	began = time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range elasticSlots {
		prompt := b.prompt(elasticTurns * elasticTurn)
		group.Go(func() error {
			_, err := b.ask(ctx, l, prompt, elasticTurnAnswer)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	side.At.AddSeconds(time.Since(began))
	return nil
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

func (r *Elastic) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d slots of %s tokens, %s of K and V\n\n", r.Slots, show.Count(r.Context), megabytes(float64(r.KVBytes)))
	row := func(name string, s ElasticSide) []string {
		cells := []string{name, seconds(s.Load)}
		for _, m := range []measure.Series{s.Idle, s.Used, s.Left} {
			cells = append(cells, spread(m, megabytes))
		}
		return append(cells, fmt.Sprintf("%.0f", s.Prefill.Median), fmt.Sprintf("%.1f", s.Decode.Median))
	}
	table.Print(w, []string{"OLLAMA_KVCACHED", "load", "memory, idle", fmt.Sprintf("with %s tokens", show.Count(r.Prompt)), "after they left", "prefill tok/s", "decode tok/s"}, [][]string{
		row("0", r.Off), row("1", r.On),
	})
	fmt.Fprintf(w, "\non over off: load %s, prefill %s, decode %s\n", ratio(r.Load), ratio(r.Prefill), ratio(r.Decode))
	fmt.Fprintf(w, "time, on over off: %d turns of a conversation %s (%.1f s), %d prompts of %s tokens at a time %s (%.1f s)\n",
		elasticTurns, ratio(r.Turns), r.On.Turns.Median, elasticSlots, show.Count(elasticTurns*elasticTurn), ratio(r.At), r.On.At.Median)
	fmt.Fprintf(w, "commits and uncommits: %.0f and %.0f ns a token, together %.3f %% of a batch of prefill\n",
		r.Commit.Commit.Median, r.Commit.Uncommit.Median, 100*r.Commit.Share)
}

func megabytes(v float64) string { return fmt.Sprintf("%.0f MB", v/1e6) }
