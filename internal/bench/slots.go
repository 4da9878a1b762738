package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamatest"
)

const (
	// slotsDecoding is the number of slots that decode while one more restores.
	slotsDecoding = 4
	// slotsRestores is the number of restores in a repetition.
	slotsRestores = 20
	// slotsIdle is the number of tokens that each slot decodes between two restores.
	slotsIdle = 60
	// slotsPrompt is the prompt before their answers, in tokens.
	slotsPrompt = 32
)

// span is an interval of time.
type span struct{ from, to time.Time }

func (s span) overlaps(o span) bool { return s.from.Before(o.to) && o.from.Before(s.to) }

// windows are intervals of length d within s, at distances of d.
func (s span) windows(d time.Duration) (all []span) {
	for from := s.from; !from.Add(d).After(s.to); from = from.Add(2 * d) {
		all = append(all, span{from, from.Add(d)})
	}
	return all
}

// decoder is a slot whose tokens are timed. When an answer ends, by an end token or because
// Ollama finds that it repeats itself, another answer begins.
type decoder struct {
	mu     sync.Mutex
	tokens []time.Time // zero where an answer begins
}

func (d *decoder) token(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens = append(d.tokens, at)
}

func (d *decoder) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.tokens)
}

// gaps returns the times between neighbouring tokens in seconds, of the intervals that keep
// accepts.
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

// startDecoders sends the requests and waits until all of them decode.
func startDecoders(ctx context.Context, r *rig, l *lab.Lab) (*decoders, error) {
	ctx, cancel := context.WithCancel(ctx)
	ds := &decoders{cancel: cancel, ended: make(chan error, slotsDecoding)}
	for range slotsDecoding {
		d := &decoder{}
		ds.each = append(ds.each, d)
		request := ollamatest.Request{
			Model: l.Model().Name, Prompt: r.prompt(slotsPrompt), Raw: true,
			KeepAlive: ollamatest.KeepAlive(time.Duration(math.MaxInt64)),
			Options: map[string]any{
				"temperature": 1, "top_k": 4, // greedy answers soon repeat themselves
				"num_predict": r.numCtx, "num_ctx": r.numCtx, "num_thread": threadsButOne(), "kv_store": false,
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

// advance waits until each request has received `tokens` more tokens.
func (ds *decoders) advance(ctx context.Context, tokens int) error {
	looks := time.NewTicker(time.Millisecond)
	defer looks.Stop()
	for _, d := range ds.each {
		for want := d.count() + tokens; d.count() < want; {
			select {
			case <-looks.C:
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

// Slots is the time between tokens of slots that decode, while another restores.
type Slots struct {
	Decoding      int            `json:"decoding"` // slots
	DecodeThreads int            `json:"decode_threads"`
	RestoreTokens int            `json:"restore_tokens"`
	Took          measure.Series `json:"restore_took" unit:"s"`
	Idle          Gaps           `json:"idle" unit:"s"`      // the other slot is idle
	Restoring     Gaps           `json:"restoring" unit:"s"` // from the restore's lookup to its last row
	// Ratio is the relative p99 of Restoring over that of Idle, per repetition.
	Ratio measure.Series `json:"p99_ratio"`
}

// Gaps summarizes the times between two tokens of a slot, in seconds.
type Gaps struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// Relative values are of each gap over the median gap just before the restore.
	P50Relative float64 `json:"p50_relative" unit:"ratio"`
	P99Relative float64 `json:"p99_relative" unit:"ratio"`
}

// measureSlots measures the time between tokens of slots that decode, in turns while another
// slot restores a prompt and while that slot is idle.
func measureSlots(ctx context.Context, r *rig) (any, error) {
	t := &Slots{Decoding: slotsDecoding, RestoreTokens: r.restoreTokens, DecodeThreads: threadsButOne()}
	restores := slotsRestores
	o := lab.Options{Threads: t.DecodeThreads, Env: []string{fmt.Sprint("OLLAMA_NUM_PARALLEL=", slotsDecoding+1)}}
	if r.quick {
		restores = 1
		o.Env = append(o.Env, "OLLAMA_KV_TIER_TEST=1") // computing so little may be quicker
	}
	var idle, restoring gaps
	err := r.fresh(ctx, o, func(l *lab.Lab, _ string) error {
		prompt := r.prompt(t.RestoreTokens)
		if err := r.Step(fmt.Sprintf("slots, store %s tokens", show.Count(t.RestoreTokens)), func() (string, error) {
			_, err := r.store(ctx, l, prompt, t.RestoreTokens, 1)
			return "", err
		}); err != nil {
			return err
		}
		return r.Repeat(fmt.Sprintf("slots, %d decode and one restores", slotsDecoding), r.repetitions, func(int) (string, error) {
			idleNow, restoringNow, err := slotsRound(ctx, r, l, t, prompt, restores)
			if err != nil {
				return "", err
			}
			if len(idleNow.seconds) == 0 || len(restoringNow.seconds) == 0 {
				return "", errors.New("no token came while one slot restored, or none while it was idle")
			}
			ratio := measure.Quantile(restoringNow.relative, 0.99) / measure.Quantile(idleNow.relative, 0.99)
			t.Ratio.Add(ratio)
			idle.add(idleNow)
			restoring.add(restoringNow)
			return fmt.Sprintf("p99 %.2f of idle", ratio), nil
		})
	})
	t.Idle, t.Restoring = idle.sum(), restoring.sum()
	return t, err
}

// gaps are times between tokens. relative has each gap over the median of the gaps of the idle time
// just before: gaps grow with the tokens in the slots, and else only the last restores would count.
type gaps struct{ seconds, relative []float64 }

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
		Count: len(g.seconds), P50: measure.Quantile(g.seconds, 0.5), P99: measure.Quantile(g.seconds, 0.99), Max: measure.Quantile(g.seconds, 1),
		P50Relative: measure.Quantile(g.relative, 0.5), P99Relative: measure.Quantile(g.relative, 0.99),
	}
}

// slotsTurn is an interval in which the other slot was idle, and the restore after it.
type slotsTurn struct{ idle, restoring span }

// measure adds the gaps that overlap the idle time or the restore. A long gap overlaps a
// short interval more often than a short gap does: so both are counted through windows of
// the same length.
func (t slotsTurn) measure(ds *decoders, idle, restoring *gaps) {
	windows := t.idle.windows(t.restoring.to.Sub(t.restoring.from))
	var before, during []float64
	for _, d := range ds.each {
		before = append(before, d.gaps(func(gap span) bool { return slices.ContainsFunc(windows, gap.overlaps) })...)
		during = append(during, d.gaps(t.restoring.overlaps)...)
	}
	if usual := measure.Median(before); usual > 0 {
		idle.addRelativeTo(usual, before)
		restoring.addRelativeTo(usual, during)
	}
}

// slotsRound runs one repetition: restores, each after an idle time.
func slotsRound(ctx context.Context, r *rig, l *lab.Lab, t *Slots, prompt string, restores int) (idle, restoring gaps, err error) {
	ds, err := startDecoders(ctx, r, l)
	defer ds.stop()
	if err != nil {
		return idle, restoring, err
	}
	// From the first restore on, the other slots' new tokens are in cells after the restored
	// rows, and each of their batches skips these rows. The first restore is not counted,
	// because that cost does not belong to further restores.
	if _, err := oneTurn(ctx, r, l, ds, t.RestoreTokens, prompt); err != nil {
		return idle, restoring, err
	}
	var turns []slotsTurn
	for range restores {
		turn, err := oneTurn(ctx, r, l, ds, t.RestoreTokens, prompt)
		if err != nil {
			return idle, restoring, err
		}
		turns = append(turns, turn)
		t.Took.AddSeconds(turn.restoring.to.Sub(turn.restoring.from))
	}
	for _, turn := range turns {
		turn.measure(ds, &idle, &restoring)
	}
	return idle, restoring, nil
}

func oneTurn(ctx context.Context, r *rig, l *lab.Lab, ds *decoders, tokens int, prompt string) (turn slotsTurn, err error) {
	// a short prompt replaces the tokens in the slot that restores
	if err := r.load(ctx, l); err != nil {
		return turn, err
	}
	if err := ds.advance(ctx, 2); err != nil { // until the short request has no effect any more
		return turn, err
	}
	began := time.Now()
	if err := ds.advance(ctx, slotsIdle); err != nil {
		return turn, err
	}
	turn.idle = span{began, time.Now()}

	mark := l.LogMark()
	answer, err := r.ask(ctx, l, prompt, 1)
	if err != nil {
		return turn, err
	}
	if answer.Restored.Tokens < tokens/2 {
		return turn, fmt.Errorf("%d of %d tokens were restored", answer.Restored.Tokens, tokens)
	}
	ended, err := restoredAt(l.Logs()[mark:])
	turn.restoring = span{ended.Add(-answer.Restored.Took), ended}
	return turn, err
}

// restoredTime matches the time of the runner's log line about a restore. Runner and client
// share a clock.
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
