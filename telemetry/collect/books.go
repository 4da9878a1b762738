package collect

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

const (
	// endedMax bounds the processes that ended and whose ids are kept: a report of such a
	// process adds only the growth since its last one.
	endedMax = 128
	// lateMax is the time for which a report may be on its way after its process has ended;
	// limits of the connection make it shorter.
	lateMax = time.Minute
	// detailBytesMax bounds the states of all processes, as JSON. The largest are left out.
	detailBytesMax = 2 << 20
)

// errFull reports that too many processes run.
var errFull = errors.New("too many processes report to this collector")

// processKey identifies a process. Where a system does not tell the start of a process, the
// time by the process's clock stands for it.
type processKey struct {
	telemetry.Process
	started int64
}

func keyOf(p telemetry.Process, started time.Time) processKey {
	key := processKey{Process: p}
	if p.Start == 0 {
		key.started = started.UnixNano()
	}
	return key
}

// process is a process that has reported.
type process struct {
	id      telemetry.Process
	started time.Time
	model   *model
	last    []float64 // totals that are counted, by their place in the model
	seq     uint64    // of the last prompt that is known
	heard   time.Time // when the last report came, or the file was read
	near    bool      // its number is one of this process's namespace of process ids

	live    bool
	lastAt  time.Time // Report.At of the report that was said to be the last
	gone    time.Time // since when it is taken for certain that it does not run; zero if that is not certain
	away    bool      // it may run nevertheless: on another machine, or its reports are on their way
	report  *telemetry.Report
	details int // bytes of its state as JSON
}

// books are the sum of all reports. Methods may be called from several goroutines.
type books struct {
	now    func() time.Time
	silent time.Duration

	mu    sync.Mutex
	since time.Time
	// dropped is the latest start of the processes whose ids were dropped. A process that is not
	// known and began before may have been counted.
	dropped   time.Time
	models    []*model // in the order of their first report
	byKey     map[modelKey]*model
	processes map[processKey]*process
	prompts   []telemetry.StatePrompt // the latest, in the order in which they came
	tiers     []noted
	details   int    // bytes of all processes
	changes   uint64 // counts changes of the file's content
}

func newBooks(opt Options) *books {
	return &books{
		now: opt.now, silent: opt.Intervals.Silent, since: opt.now(),
		byKey: make(map[modelKey]*model), processes: make(map[processKey]*process),
	}
}

// add counts a report. Peer is the number of the process that sent it, 0 if unknown. Last says
// that the process will not report any more.
func (b *books) add(r *telemetry.Report, peer int, last bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	p, known := b.processes[keyOf(r.Process, r.Started)]
	if !known || !p.live {
		if b.liveLocked() >= telemetry.ProcessesMax {
			return errFull
		}
	}
	m := b.modelLocked(r)
	if !known {
		p = &process{id: r.Process, started: r.Started, model: m}
		if !b.dropped.IsZero() && !r.Started.After(b.dropped) {
			p.count(r.Totals, false) // its id may have been dropped
		}
		b.processes[keyOf(r.Process, r.Started)] = p
	}
	if p.model != m {
		p.move(m)
		b.changes++
	}
	if p.count(r.Totals, true) || !known {
		m.lastUsed = now
		b.changes++
	}
	b.promptsLocked(p, r)
	p.heard = now
	p.near = peer == r.Process.PID && r.Process.Start != 0
	switch {
	case last:
		p.lastAt = r.At
		b.endLocked(p)
	case p.lastAt.IsZero() || r.At.After(p.lastAt): // not one that was on its way for longer than the last
		p.live, p.lastAt, p.gone, p.away = true, time.Time{}, time.Time{}, false
		b.noteTiersLocked(r)
		b.detailsLocked(p, r)
	}
	b.boundLocked()
	return nil
}

func (b *books) liveLocked() (n int) {
	for _, p := range b.processes {
		if p.live {
			n++
		}
	}
	return n
}

// count adds the growth of a process's totals to its model's, and reports whether there was
// any. Without adding, count only notes the totals.
func (p *process) count(totals map[string]float64, adding bool) (grew bool) {
	for series, value := range totals {
		i, ok := p.model.place(series)
		if !ok {
			continue
		}
		for len(p.last) <= i {
			p.last = append(p.last, 0)
		}
		if value <= p.last[i] {
			continue // totals do not fall within a process
		}
		if adding {
			p.model.totals[i] = min(p.model.totals[i]+(value-p.last[i]), sumMax)
			grew = true
		}
		p.last[i] = value
	}
	return grew
}

// move gives a process another model. Its totals so far stay with the former one.
func (p *process) move(to *model) {
	from, last := p.model, p.last
	p.model, p.last = to, nil
	for i, value := range last {
		p.count(map[string]float64{from.series[i]: value}, false)
	}
}

// promptsLocked adds the prompts of a report that are not known yet.
func (b *books) promptsLocked(p *process, r *telemetry.Report) {
	for _, prompt := range r.Prompts {
		if prompt.Seq <= p.seq {
			continue
		}
		p.seq = prompt.Seq
		if len(b.prompts) == telemetry.StatePromptsMax {
			b.prompts = slices.Delete(b.prompts, 0, 1)
		}
		b.prompts = append(b.prompts, telemetry.StatePrompt{
			Prompt: prompt, Process: r.Process, Weights: r.Model.Weights, Namespace: r.Model.Namespace,
		})
	}
}

// detailsLocked keeps the report for the process's state. When all states are too large, the
// largest are left out until their next report.
func (b *books) detailsLocked(p *process, r *telemetry.Report) {
	encoded, err := json.Marshal(stateOf(p.id, p.started, r))
	if err != nil { // checkReport leaves nothing that cannot be encoded
		b.endLocked(p) // a process without a report has no state
		return
	}
	r.Totals, r.Prompts = nil, nil // are in the books
	b.details += len(encoded) - p.details
	p.report, p.details = r, len(encoded)
	for b.details > detailBytesMax {
		largest := p
		for _, other := range b.processes {
			if other.details > largest.details {
				largest = other
			}
		}
		b.details -= largest.details
		largest.report, largest.details = bare(largest.report), 0
	}
}

// bare is a report without the parts that may be large.
func bare(r *telemetry.Report) *telemetry.Report {
	return &telemetry.Report{Version: r.Version, Process: r.Process, Started: r.Started, At: r.At, Model: r.Model}
}

// endLocked takes a process for ended: its totals stay, its state goes.
func (b *books) endLocked(p *process) {
	b.details -= p.details
	p.live, p.report, p.details = false, nil, 0
}

// boundLocked drops ids of processes that ended: first those that cannot report any more, then
// those that were not heard for the longest time.
func (b *books) boundLocked() {
	var kept []*process
	for key, p := range b.processes {
		switch {
		case p.live:
		case !p.gone.IsZero() && b.now().Sub(p.gone) > lateMax:
			b.dropLocked(key, p)
		default:
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, func(x, y *process) int { return x.heard.Compare(y.heard) })
	for _, p := range kept[:max(0, len(kept)-endedMax)] {
		p.away = p.away || p.gone.IsZero() || b.now().Sub(p.gone) <= lateMax
		b.dropLocked(keyOf(p.id, p.started), p)
	}
}

// dropLocked forgets the id of a process. One that may yet report, and any other that began before
// it, counts from its first report on.
func (b *books) dropLocked(key processKey, p *process) {
	if p.away && p.started.After(b.dropped) {
		b.dropped = p.started
	}
	delete(b.processes, key)
	b.changes++
}

// look takes processes that do not report any more, or do not run, for ended.
func (b *books) look(ended func(telemetry.Process) bool) {
	var near []*process
	b.mu.Lock()
	for _, p := range b.processes {
		if p.live && b.now().Sub(p.heard) > b.silent {
			b.endLocked(p)
		}
		if p.near && p.gone.IsZero() {
			near = append(near, p)
		}
	}
	b.boundLocked()
	b.mu.Unlock()
	for _, p := range near {
		if !ended(p.id) { // asks the system, so without the lock
			continue
		}
		b.mu.Lock()
		if p.live {
			b.endLocked(p)
		}
		p.gone = b.now()
		b.mu.Unlock()
	}
}

// sizeOf is the length of a series in a file or an answer, with the characters that JSON escapes.
func sizeOf(series string) int {
	return len(series) + len(`""`) + strings.Count(series, `"`) + strings.Count(series, "\\") +
		len("\u2028")*(strings.Count(series, "\u2028")+strings.Count(series, "\u2029"))
}
