package collect

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

// Push writes the reports of a source into the root's directory until ctx ends, and then a last time.
// Push makes reports in one goroutine. It returns in bounded time after the end of ctx, also if the
// source or the disk hangs.
func Push(ctx context.Context, root string, source *telemetry.Source, opt Options) {
	opt = opt.withDefaults()
	place, err := newPlace(root, opt)
	if err != nil {
		return // this process has no directory
	}
	p := newPusher(place, source, opt)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.run(ctx) // a disk that takes no report has been logged
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	steady.Ended(done, opt.Intervals.Last+opt.Intervals.Disk)
}

// pusher writes the reports of one source. Its methods are called in one goroutine.
type pusher struct {
	own    *own
	source *telemetry.Source
	opt    Options

	ever     bool // some attempt was good
	failures int  // of the latest attempts
	seed     maphash.Seed
	sum      uint64    // of the last report that was written, without its time
	written  time.Time // when it was

	totals   map[string]float64 // of the latest report
	lastUsed time.Time          // when they grew
}

func newPusher(place *place, source *telemetry.Source, opt Options) *pusher {
	return &pusher{own: newOwn(place, opt), source: source, opt: opt, seed: maphash.MakeSeed()}
}

// soonest is the part of an interval after which a nudge may cause the next report.
const soonest = 10

// run returns the error of the last report.
func (p *pusher) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	nudged := p.opt.Nudge
	var asked chan<- struct{}
	for {
		select {
		case <-ctx.Done():
			answered(asked)
			return p.last(context.WithoutCancel(ctx))
		case asked = <-nudged:
			if p.failures > 0 {
				asked = answered(asked) // the disk is not asked more often
				continue
			}
			nudged = nil // until the next report
			if asked == nil {
				timer.Reset(time.Until(p.written.Add(p.opt.Intervals.Report / soonest)))
			} else {
				timer.Reset(0)
			}
			continue
		case <-timer.C:
		}
		nudged = p.opt.Nudge
		timer.Reset(p.step(ctx))
		asked = answered(asked)
	}
}

// answered tells somebody who waits for a report that there is nothing more to wait for.
func answered(asked chan<- struct{}) chan<- struct{} {
	if asked != nil {
		close(asked)
	}
	return nil
}

// step makes one attempt, and returns the time until the next.
func (p *pusher) step(ctx context.Context) time.Duration {
	err := p.try(ctx, false)
	if err == nil {
		p.failures = 0
		return p.opt.Intervals.Report
	}
	if p.failures == 0 {
		log := p.opt.Logger
		log.Debug("kv tier: a report was not written", "path", p.own.place.dir, "error", err)
	}
	p.failures = min(p.failures+1, 8)
	return min(p.opt.Intervals.Report/4<<p.failures, p.opt.Intervals.Backoff)
}

// last writes the last report, and gives the files up. A disk that took none is not waited for.
func (p *pusher) last(ctx context.Context) (err error) {
	defer p.own.end()
	ctx, cancel := context.WithTimeout(ctx, p.opt.Intervals.Last)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-timer.C:
		}
		err = p.try(ctx, true)
		passes := errors.Is(err, vfs.ErrLocked) || errors.Is(err, errLost) // somebody looks whether this process runs
		if err == nil || !p.ever && !passes || errors.Is(err, steady.ErrHung) {
			return err
		}
		timer.Reset(p.opt.Intervals.Last / 10)
	}
}

// try writes a report, unless nothing has changed since the last one and the last one is recent.
func (p *pusher) try(ctx context.Context, last bool) error {
	r := p.source.Report()
	if !maps.Equal(r.Totals, p.totals) || p.lastUsed.IsZero() {
		p.totals, p.lastUsed = maps.Clone(r.Totals), time.Now()
	}
	at := r.At
	r.At = time.Time{}
	prompts := promptsIn(&r)
	words, err := encode(prompts)
	if err != nil {
		return err
	}
	content := &report{r, p.lastUsed}
	numbers, err := fit(content)
	if err != nil {
		return err
	}
	var sum maphash.Hash
	sum.SetSeed(p.seed)
	_, _ = sum.Write(numbers)
	_, _ = sum.Write(words)
	if p.ever && p.failures == 0 && !last && sum.Sum64() == p.sum && time.Since(p.written) < p.opt.Intervals.Heartbeat {
		return nil
	}
	content.At = at
	if numbers, err = encode(content); err != nil {
		return err
	}
	if err := p.own.write(ctx, numbers, prompts); err != nil {
		return err
	}
	p.ever, p.sum, p.written = true, sum.Sum64(), time.Now()
	return nil
}

// fit encodes a report, and cuts those of its parts that are longer than a reader accepts.
func fit(r *report) ([]byte, error) {
	r.Slots = r.Slots[:min(len(r.Slots), telemetry.SlotsMax)]
	r.Tiers = r.Tiers[:min(len(r.Tiers), tiersMax)]
	r.Memory = r.Memory[:min(len(r.Memory), memoryMax)]
	data, err := encode(r)
	if err == nil && len(data)+timeBytes > telemetry.ReportBytesMax {
		r.Slots, r.Memory, r.Gauges = nil, nil, nil
		data, err = encode(r)
	}
	if err == nil && len(data)+timeBytes > telemetry.ReportBytesMax {
		err = errors.New("a report is too large for a reader")
	}
	return data, err
}

// timeBytes is more than a time adds to a report.
const timeBytes = 64
