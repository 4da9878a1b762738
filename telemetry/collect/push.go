package collect

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

// Options of Push. The zero Options are ready for use.
type Options struct {
	Logger *slog.Logger // nil for none

	// Names reads the names of models, for a process that does not know that of its own; it may take its
	// time. Nil for none.
	Names func() modelnames.Names

	// Nudge asks for a report at once. Give it room for one value, and send without waiting. A value that is
	// not nil is closed when the report is written, or when it is not; wait for it with a bound.
	Nudge <-chan chan<- struct{}
}

type intervals struct {
	report    time.Duration // between reports while something changes
	heartbeat time.Duration // between reports while nothing does
	last      time.Duration // most time of the last report
	backoff   time.Duration // longest time between attempts that fail
}

var defaultIntervals = intervals{
	report: time.Second, heartbeat: 2 * telemetry.SilentAfter / 3, last: 500 * time.Millisecond, backoff: 4 * time.Second,
}

// Push writes the reports of a source into the root's directory until ctx ends, and then a last time.
// Push makes reports in one goroutine. It returns in bounded time after the end of ctx, also if the
// source or the disk hangs; the goroutine then ends with the operation that hangs.
func Push(ctx context.Context, root string, source *telemetry.Source, opt Options) {
	place, err := newPlace(root)
	if err != nil {
		return // this process has no directory
	}
	newPusher(place, source, opt).push(ctx)
}

// pusher writes the reports of one source into the files of one process. The lock is held from the first
// report on, and while a write hangs also after the end: nobody adds a file to the totals that may yet
// be replaced.
type pusher struct {
	*place
	source *telemetry.Source
	opt    Options
	every  intervals
	names  modelnames.Cache

	name    string // of the files, without their ends
	lock    *held
	prompts prompts

	runs     steady.Guard // hangs while a run does that nobody waits for
	failures int          // of the latest attempts
	content  []byte       // of the last report that was written, without its time; nil before the first
	written  time.Time    // when it was

	totals   map[string]float64 // of the latest report
	lastUsed time.Time          // when they grew
	reported map[string]float64 // of the last report that was written
	former   map[string]float64 // of those, what was reported under former names
}

func newPusher(place *place, source *telemetry.Source, opt Options) *pusher {
	place.log = cmp.Or(opt.Logger, place.log)
	return &pusher{place: place, source: source, opt: opt, every: defaultIntervals, name: newName()}
}

func (p *pusher) push(ctx context.Context) {
	if p.opt.Names != nil {
		go p.names.Refresh(ctx, p.opt.Names)
	}
	_ = until(ctx, &p.runs, p.every.last+p.patience, func() error { return p.run(ctx) }) // a disk that takes no report has been logged
}

// newName names the files of one process. No other process ever has the same.
func newName() string { return "p-" + rand.Text() }

// run returns the error of the last report.
func (p *pusher) run(ctx context.Context) error {
	defer p.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.last()
		case written := <-p.opt.Nudge:
			if p.failures == 0 { // else the disk is not asked more often
				timer.Reset(p.step())
			}
			if written != nil {
				close(written)
			}
		case <-timer.C:
			timer.Reset(p.step())
		}
	}
}

// step makes one attempt, and returns the time until the next.
func (p *pusher) step() time.Duration {
	err := p.try(false)
	if err == nil {
		p.failures = 0
		return p.every.report
	}
	if p.failures == 0 && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, vfs.ErrLocked) {
		p.log.Warn("kv tier: cannot write reports, and tries again", "path", p.dir, "error", err)
	}
	p.failures = min(p.failures+1, 8)
	return min(p.every.report/4<<p.failures, p.every.backoff)
}

// last writes the last report. A disk that took none is not waited for.
func (p *pusher) last() (err error) {
	for end := time.Now().Add(p.every.last); ; time.Sleep(p.every.last / 10) {
		err = p.try(true)
		passes := errors.Is(err, vfs.ErrLocked) // somebody looks whether this process runs
		if err == nil || p.content == nil && !passes || time.Now().After(end) {
			return err
		}
	}
}

// try writes a report, unless nothing has changed since the last one and the last one is recent. A new
// prompt changes the totals.
func (p *pusher) try(last bool) error {
	r := p.source.Report()
	if !maps.Equal(r.Totals, p.totals) || p.lastUsed.IsZero() {
		p.totals, p.lastUsed = maps.Clone(r.Totals), time.Now()
	}
	if name := p.names.Name(r.Model.Weights); r.Model.Name == "" && isShown(name) {
		r.Model.Name = name
	}
	at, prompts := r.At, takePrompts(&r)
	r.At = time.Time{}
	numbers := &report{r, p.lastUsed}
	content, err := fit(numbers)
	if err != nil {
		return err
	}
	if p.failures == 0 && !last && bytes.Equal(content, p.content) && time.Since(p.written) < p.every.heartbeat {
		return nil
	}
	if err := p.open(); err != nil {
		p.prompts.drop(prompts) // a removal does not reach a process without files
		return err
	}
	numbers.At = at
	for series, n := range p.former {
		numbers.Totals[series] = max(0, numbers.Totals[series]-n)
	}
	data, err := encode(numbers)
	if err != nil {
		return err
	}
	if p.reported == nil { // its texts stay the same
		if _, err := decodeReport(data); err != nil {
			return fmt.Errorf("readers would pass the report over: %w", err)
		}
	}
	promptsErr := p.prompts.write(p.place, p.name+wordsEnd, prompts) // first: a reader of the totals finds them, unless this fails
	if err := p.replace(p.name+numbersEnd, data); err != nil {
		return errors.Join(promptsErr, err)
	}
	if p.reported = p.totals; promptsErr == nil {
		p.content, p.written = content, time.Now()
	}
	return promptsErr
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

// open takes the lock. A process whose lock a person has removed may be added to the totals as one that
// has ended, so it goes on under another name, with what it counts from then on.
func (p *pusher) open() (err error) {
	if p.lock != nil {
		if p.holds(p.lock) {
			return nil
		}
		p.end()
		p.name, p.former = newName(), p.reported
	}
	if p.lock, err = p.lockSoon(p.name+lockEnd, p.patience); err != nil {
		return err
	}
	if err := p.fold(); err != nil { // makes the totals
		p.log.Warn("kv tier: totals of reports cannot be written, files of processes that have ended stay", "error", err)
	}
	return nil
}

func (p *pusher) end() {
	if p.lock != nil {
		p.lock.Close()
		p.lock = nil
	}
}

// Self describes this process, for a [telemetry.Source]. Self leaves Boot and Start out where
// the system does not tell them.
func Self(engine string) telemetry.Process {
	p := telemetry.Process{PID: os.Getpid(), Engine: engine}
	stat, err := proc.Read(p.PID)
	if err != nil {
		return p
	}
	if boot, err := proc.Boot(); err == nil {
		p.Boot, p.Start = boot, stat.Start
	}
	return p
}
