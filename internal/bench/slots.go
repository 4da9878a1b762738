package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

const (
	// slotsDecoding is how many slots decode while one more restores.
	slotsDecoding = 4
	// slotsRestores is how many restores there are in one repetition.
	slotsRestores = 20
	// slotsIdle is how many tokens each of them decodes between two restores while
	// the last slot is idle.
	slotsIdle = 60
	// slotsPrompt is what they decode after, in tokens.
	slotsPrompt = 32
)

// span is a piece of time.
type span struct{ from, to time.Time }

func (s span) overlaps(o span) bool { return s.from.Before(o.to) && o.from.Before(s.to) }

// beginsIn reports whether s begins while o lasts.
func (s span) beginsIn(o span) bool { return !s.from.Before(o.from) && s.from.Before(o.to) }

// windows are pieces of s that are as long as d and as far apart. A long gap meets
// a short window more often than a short one does: what is compared with windows
// of some length must be seen through such windows, too.
func (s span) windows(d time.Duration) (all []span) {
	for from := s.from; !from.Add(d).After(s.to); from = from.Add(2 * d) {
		all = append(all, span{from, from.Add(d)})
	}
	return all
}

// decoder is a slot whose tokens are timed. When an answer ends, by a token that
// says so or because Ollama takes it for one that goes in circles, another begins.
type decoder struct {
	mu     sync.Mutex
	tokens []time.Time   // zero where an answer begins
	more   chan struct{} // holds a token when there is a new one
}

func (d *decoder) token(at time.Time) {
	d.mu.Lock()
	d.tokens = append(d.tokens, at)
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default:
	}
}

func (d *decoder) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.tokens)
}

// gaps returns the time between each two tokens, where keep says so.
func (d *decoder) gaps(keep func(span) bool) (seconds []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 1; i < len(d.tokens); i++ {
		if gap := (span{d.tokens[i-1], d.tokens[i]}); !gap.from.IsZero() && !gap.to.IsZero() && keep(gap) {
			seconds = append(seconds, gap.to.Sub(gap.from).Seconds())
		}
	}
	return seconds
}

// decoders are slots that decode until their context ends.
type decoders struct {
	each   []*decoder
	cancel context.CancelFunc
	ended  chan error // one per decoder
}

// startDecoders sends the requests and returns when all of them decode.
func (b *bench) startDecoders(ctx context.Context, l *lab.Lab) (*decoders, error) {
	ctx, cancel := context.WithCancel(ctx)
	ds := &decoders{cancel: cancel, ended: make(chan error, slotsDecoding)}
	for range slotsDecoding {
		d := &decoder{more: make(chan struct{}, 1)}
		ds.each = append(ds.each, d)
		request := ollamatest.Request{
			Model: l.Model().Name, Prompt: b.prompt(slotsPrompt), Raw: true,
			KeepAlive: ollamatest.KeepAlive(time.Duration(math.MaxInt64)),
			Options: map[string]any{
				"temperature": 1, "top_k": 4, // the best token alone soon repeats itself
				"num_predict": b.numCtx, "num_ctx": b.numCtx, "num_thread": slotsThreads(), "kv_store": false,
			},
		}
		go func() {
			var err error
			for err == nil && ctx.Err() == nil {
				d.token(time.Time{})
				err = l.API().Generate(ctx, &request, func(api.GenerateResponse) error { d.token(time.Now()); return nil })
			}
			ds.ended <- err
		}()
	}
	return ds, ds.advance(ctx, 2)
}

// advance returns when each request has got that many more tokens.
func (ds *decoders) advance(ctx context.Context, tokens int) error {
	for _, d := range ds.each {
		for want := d.count() + tokens; d.count() < want; {
			select {
			case <-d.more:
			case err := <-ds.ended:
				ds.ended <- err
				return fmt.Errorf("a slot that was to decode until the end: %w", errors.Join(err, ctx.Err()))
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// stop ends the requests.
func (ds *decoders) stop() {
	ds.cancel()
	for range ds.each {
		<-ds.ended
	}
}

// slotsThreads leaves a core to the server and to whoever measures.
func slotsThreads() int { return max(1, runtime.NumCPU()-1) }

// measureSlots measures the time between tokens of slots that decode, while
// another slot restores a prompt and while it is idle, in turns.
func (b *bench) measureSlots(ctx context.Context) (err error) {
	r := &Slots{Decoding: slotsDecoding, RestoreTokens: b.settings.restoreTokens, DecodeThreads: slotsThreads()}
	b.report.Slots = r
	root := filepath.Join(b.dir, "pages")
	l, err := lab.Start(ctx, lab.Options{
		Model: b.model, Root: root, NumCtx: b.numCtx, Threads: r.DecodeThreads,
		Env: []string{fmt.Sprint("OLLAMA_NUM_PARALLEL=", slotsDecoding+1)},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(root)) }()
	if b.report.Versions.Kvtier, err = l.Version(ctx); err != nil {
		return err
	}
	step := b.steps.Step(fmt.Sprintf("slots, store %s tokens", show.Count(r.RestoreTokens)))
	prompt := b.prompt(r.RestoreTokens)
	_, err = b.ask(ctx, l, prompt, 1)
	if err == nil {
		err = l.Settle(ctx, lab.PagesOf(r.RestoreTokens))
	}
	step.End("")
	if err != nil {
		return err
	}
	var all slotsGaps
	for repetition := range b.settings.repetitions {
		step := b.steps.Step(fmt.Sprintf("slots, %d decode and one restores, %d of %d", slotsDecoding, repetition+1, b.settings.repetitions))
		gaps, err := b.slotsRound(ctx, l, r, prompt)
		if err != nil {
			step.End("failed")
			return err
		}
		ratio := quantile(gaps.restoring, 0.99) / quantile(gaps.idle, 0.99)
		r.Ratio.add(ratio)
		note := fmt.Sprintf("p99 %.2f of idle", ratio)
		if len(gaps.begun) > 0 && len(gaps.within) > 0 { // a restore may be shorter than a gap
			within := quantile(gaps.within, 0.99) / quantile(gaps.begun, 0.99)
			r.RatioWithin.add(within)
			note += fmt.Sprintf("; of gaps that begin within the restore %.2f", within)
		}
		step.End(note)
		all.add(gaps)
	}
	r.Idle, r.Restoring, r.Within = gapsOf(all.idle), gapsOf(all.restoring), gapsOf(all.within)
	return nil
}

// slotsGaps are times between tokens, in seconds: of gaps that overlap pieces of idle time
// and restores, and of those that begin in them.
type slotsGaps struct{ idle, restoring, begun, within []float64 }

func (g *slotsGaps) add(o slotsGaps) {
	g.idle, g.restoring = append(g.idle, o.idle...), append(g.restoring, o.restoring...)
	g.begun, g.within = append(g.begun, o.begun...), append(g.within, o.within...)
}

// slotsRound is one repetition: some restores, and as many times without.
func (b *bench) slotsRound(ctx context.Context, l *lab.Lab, r *Slots, prompt string) (slotsGaps, error) {
	ds, err := b.startDecoders(ctx, l)
	defer ds.stop()
	if err != nil {
		return slotsGaps{}, err
	}
	var idle, restoring []span
	restores := slotsRestores
	if b.settings.quick {
		restores = 1
	}
	for range restores {
		// the slot that is left loses what it holds
		if _, err := b.askShort(ctx, l, b.prompt(shortPrompt)); err != nil {
			return slotsGaps{}, err
		}
		if err := ds.advance(ctx, 2); err != nil { // what that request cost is over
			return slotsGaps{}, err
		}
		began := time.Now()
		if err := ds.advance(ctx, slotsIdle); err != nil {
			return slotsGaps{}, err
		}
		nothing := span{began, time.Now()}

		mark := l.LogMark()
		answer, err := b.ask(ctx, l, prompt, 1)
		if err != nil {
			return slotsGaps{}, err
		}
		if answer.Restored.Tokens < r.RestoreTokens/2 {
			return slotsGaps{}, fmt.Errorf("%d of %d tokens were restored", answer.Restored.Tokens, r.RestoreTokens)
		}
		ended, err := restoredAt(l.Logs()[mark:])
		if err != nil {
			return slotsGaps{}, err
		}
		restoring = append(restoring, span{ended.Add(-answer.Restored.Took), ended})
		idle = append(idle, nothing.windows(answer.Restored.Took)...)
		r.Took.addSeconds(answer.Restored.Took)
	}
	var gaps slotsGaps
	for _, d := range ds.each {
		gaps.add(slotsGaps{
			idle:      d.gaps(func(gap span) bool { return slices.ContainsFunc(idle, gap.overlaps) }),
			restoring: d.gaps(func(gap span) bool { return slices.ContainsFunc(restoring, gap.overlaps) }),
			begun:     d.gaps(func(gap span) bool { return slices.ContainsFunc(idle, gap.beginsIn) }),
			within:    d.gaps(func(gap span) bool { return slices.ContainsFunc(restoring, gap.beginsIn) }),
		})
	}
	if len(gaps.idle) == 0 || len(gaps.restoring) == 0 {
		return gaps, errors.New("no token came while one slot restored, or none while it was idle")
	}
	return gaps, nil
}

// restoredTime is when the runner had restored a prompt, by the clock that this
// process has too.
var restoredTime = regexp.MustCompile(`time=(\S+) level=\S+ source=\S+ msg="kv tier: restored"`)

func restoredAt(log string) (time.Time, error) {
	match := restoredTime.FindStringSubmatch(log)
	if match == nil {
		return time.Time{}, errors.New("the runner's log does not say when it has restored the prompt")
	}
	at, err := time.Parse(time.RFC3339Nano, match[1])
	if err != nil {
		return at, fmt.Errorf("reading the runner's log: %w", err)
	}
	return at, nil
}

// gapsOf sums up times between tokens.
func gapsOf(seconds []float64) Gaps {
	return Gaps{Count: len(seconds), P50: quantile(seconds, 0.5), P99: quantile(seconds, 0.99), Max: quantile(seconds, 1)}
}

// quantile is the smallest value that is not less than a share q of all; 0 of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
