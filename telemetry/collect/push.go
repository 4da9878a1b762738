package collect

import (
	"bytes"
	"context"
	"errors"
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
	timer := time.NewTimer(opt.Intervals.Last + opt.Intervals.Disk)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// pusher writes the reports of one source. Its methods are called in one goroutine.
type pusher struct {
	own    *own
	source *telemetry.Source
	opt    Options

	failures int       // of the latest attempts
	content  []byte    // of the last report that was written, without its time; nil before the first
	written  time.Time // when it was

	totals   map[string]float64 // of the latest report
	lastUsed time.Time          // when they grew
}

func newPusher(place *place, source *telemetry.Source, opt Options) *pusher {
	return &pusher{own: newOwn(place, opt), source: source, opt: opt}
}

// run returns the error of the last report.
func (p *pusher) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.last(context.WithoutCancel(ctx))
		case written := <-p.opt.Nudge:
			if p.failures == 0 { // else the disk is not asked more often
				timer.Reset(p.step(ctx))
			}
			if written != nil {
				close(written)
			}
		case <-timer.C:
			timer.Reset(p.step(ctx))
		}
	}
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
		if err == nil || p.content == nil && !passes || errors.Is(err, steady.ErrHung) {
			return err
		}
		timer.Reset(p.opt.Intervals.Last / 10)
	}
}

// try writes a report, unless nothing has changed since the last one and the last one is recent. A new
// prompt changes the totals.
func (p *pusher) try(ctx context.Context, last bool) error {
	r := p.source.Report()
	if !maps.Equal(r.Totals, p.totals) || p.lastUsed.IsZero() {
		p.totals, p.lastUsed = maps.Clone(r.Totals), time.Now()
	}
	at := r.At
	r.At = time.Time{}
	prompts := takePrompts(&r)
	numbers := &report{r, p.lastUsed}
	content, err := fit(numbers)
	if err != nil {
		return err
	}
	if p.failures == 0 && !last && bytes.Equal(content, p.content) && time.Since(p.written) < p.opt.Intervals.Heartbeat {
		return nil
	}
	numbers.At = at
	if err := p.own.write(ctx, numbers, prompts); err != nil {
		return err
	}
	p.content, p.written = content, time.Now()
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
