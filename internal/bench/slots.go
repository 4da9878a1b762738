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
	// slotsPrompt is the prompt before their answers, in tokens.
	slotsPrompt = 32
)

// span is a piece of time.
type span struct{ from, to time.Time }

func (s span) overlaps(o span) bool { return s.from.Before(o.to) && o.from.Before(s.to) }

// windows are pieces of s that are as long as d and as far apart.
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

// slotsThreads leaves a core to the server and to the client that measures.
func slotsThreads() int { return max(1, runtime.NumCPU()-1) }

// measureSlots measures the time between tokens of slots that decode, while
// another slot restores a prompt and while it is idle, in turns.
func (b *bench) measureSlots(ctx context.Context) (err error) {
	r := &Slots{Decoding: slotsDecoding, RestoreTokens: b.settings.restoreTokens, DecodeThreads: slotsThreads()}
	b.report.Slots = r
	root := filepath.Join(b.dir, "pages")
	l, err := b.start(ctx, lab.Options{
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
	step.End("", err)
	if err != nil {
		return err
	}
	var idle, restoring gaps
	for repetition := range b.settings.repetitions {
		step := b.steps.Step(fmt.Sprintf("slots, %d decode and one restores, %d of %d", slotsDecoding, repetition+1, b.settings.repetitions))
		turns, ds, err := b.slotsRound(ctx, l, r, prompt)
		if err != nil {
			step.End("", err)
			return err
		}
		var idleNow, restoringNow gaps
		for _, t := range turns {
			t.measure(ds, &idleNow, &restoringNow)
		}
		if len(idleNow.seconds) == 0 || len(restoringNow.seconds) == 0 {
			err := errors.New("no token came while one slot restored, or none while it was idle")
			step.End("", err)
			return err
		}
		ratio := quantile(restoringNow.relative, 0.99) / quantile(idleNow.relative, 0.99)
		r.Ratio.add(ratio)
		step.End(fmt.Sprintf("p99 %.2f of idle", ratio), nil)
		idle.add(idleNow)
		restoring.add(restoringNow)
	}
	r.Idle, r.Restoring = idle.sum(), restoring.sum()
	return nil
}

// gaps are times between tokens.
type gaps struct {
	seconds []float64
	// relative is them over the median of those while the slot was idle just before: they
	// grow with the tokens in the slots, and the gaps of the last restores must not be all
	// that counts.
	relative []float64
}

func (g *gaps) add(o gaps) {
	g.seconds, g.relative = append(g.seconds, o.seconds...), append(g.relative, o.relative...)
}

func (g *gaps) addRelativeTo(usual float64, seconds []float64) {
	for _, s := range seconds {
		g.seconds, g.relative = append(g.seconds, s), append(g.relative, s/usual)
	}
}

func (g *gaps) sum() Gaps {
	return Gaps{
		Count: len(g.seconds), P50: quantile(g.seconds, 0.5), P99: quantile(g.seconds, 0.99), Max: quantile(g.seconds, 1),
		P50Relative: quantile(g.relative, 0.5), P99Relative: quantile(g.relative, 0.99),
	}
}

// slotsTurn is a piece of time while the other slot was idle, and the restore after it.
type slotsTurn struct{ idle, restoring span }

// measure adds the gaps that overlap either. A long gap meets a short piece of time more
// often than a short one does: both are counted through windows of the same length.
func (t slotsTurn) measure(ds *decoders, idle, restoring *gaps) {
	windows := t.idle.windows(t.restoring.to.Sub(t.restoring.from))
	var before, during []float64
	for _, d := range ds.each {
		before = append(before, d.gaps(func(gap span) bool { return slices.ContainsFunc(windows, gap.overlaps) })...)
		during = append(during, d.gaps(t.restoring.overlaps)...)
	}
	if usual := median(before); usual > 0 {
		idle.addRelativeTo(usual, before)
		restoring.addRelativeTo(usual, during)
	}
}

// slotsRound is one repetition: some restores, each after some time without.
func (b *bench) slotsRound(ctx context.Context, l *lab.Lab, r *Slots, prompt string) ([]slotsTurn, *decoders, error) {
	ds, err := b.startDecoders(ctx, l)
	defer ds.stop()
	if err != nil {
		return nil, nil, err
	}
	restores := slotsRestores
	if b.settings.quick {
		restores = 1
	}
	// From the first restore on, the tokens that the others decode lie behind the restored
	// rows, and each of their batches looks past these: that is no cost of one more restore.
	if _, err := b.slotsTurn(ctx, l, ds, r, prompt); err != nil {
		return nil, nil, err
	}
	var turns []slotsTurn
	for range restores {
		turn, err := b.slotsTurn(ctx, l, ds, r, prompt)
		if err != nil {
			return nil, nil, err
		}
		turns = append(turns, turn)
		r.Took.addSeconds(turn.restoring.to.Sub(turn.restoring.from))
	}
	return turns, ds, nil
}

func (b *bench) slotsTurn(ctx context.Context, l *lab.Lab, ds *decoders, r *Slots, prompt string) (slotsTurn, error) {
	// the slot that is left loses its tokens
	if _, err := b.askShort(ctx, l, b.prompt(shortPrompt)); err != nil {
		return slotsTurn{}, err
	}
	if err := ds.advance(ctx, 2); err != nil { // the cost of that request is over
		return slotsTurn{}, err
	}
	began := time.Now()
	if err := ds.advance(ctx, slotsIdle); err != nil {
		return slotsTurn{}, err
	}
	nothing := span{began, time.Now()}

	mark := l.LogMark()
	answer, err := b.ask(ctx, l, prompt, 1)
	if err != nil {
		return slotsTurn{}, err
	}
	if answer.Restored.Tokens < r.RestoreTokens/2 {
		return slotsTurn{}, fmt.Errorf("%d of %d tokens were restored", answer.Restored.Tokens, r.RestoreTokens)
	}
	ended, err := restoredAt(l.Logs()[mark:])
	if err != nil {
		return slotsTurn{}, err
	}
	return slotsTurn{nothing, span{ended.Add(-answer.Restored.Took), ended}}, nil
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

// quantile is the smallest value that is not less than a share q of all; 0 of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
