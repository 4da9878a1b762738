package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/why"
)

// loader makes the files of plans, which the engine restores.
type loader struct {
	form      form
	files     *files
	reader    *reader
	rates     *rates.Rates
	patience  *patience
	partBytes int64 // Options.PartBytes
	always    bool  // Options.AlwaysRestore
	after     func(time.Duration) <-chan time.Time
	log       *slog.Logger
}

// build makes a file of a plan's pages. It returns nil if too few pages could be read in time.
func (l *loader) build(ctx context.Context, p *plan) (*slotfile.File, error) {
	if l.streams(p) {
		return l.stream(ctx, p)
	}
	f, err := l.files.create(l.form.fileSize(len(p.tokens)))
	if err != nil {
		return nil, err
	}
	b, err := l.form.shape.Build(l.files.disk.writer(f), p.tokens, l.form.window)
	if err != nil {
		l.files.drop(f)
		return nil, err
	}
	n, err := l.fill(ctx, p, b)
	if err == nil && n == len(p.refs) {
		return f, nil
	}
	defer l.files.drop(f)
	if l.form.shape.HasEnd() {
		n = 0 // a window or a state belongs to the end of the last page
	}
	if p.cut(n); err != nil || !p.worth() {
		return nil, err
	}
	return l.first(p, b, f)
}

// first makes a file of a plan's pages, which are the first ones of another file.
func (l *loader) first(p *plan, longer *llamastate.Builder, from *slotfile.File) (*slotfile.File, error) {
	f, err := l.files.create(l.form.fileSize(len(p.tokens)))
	if err != nil {
		return nil, err
	}
	b, err := l.form.shape.Build(l.files.disk.writer(f), p.tokens, 0)
	if err == nil {
		_, err = within(l.files.disk, l.patience.page, func() (struct{}, error) { return struct{}{}, b.CopyRows(from, longer) })
	}
	if err != nil {
		l.files.drop(f)
		return nil, err
	}
	return f, nil
}

// fill writes a plan's pages into a file, and returns how many leading pages the file has. They
// are fewer than the plan's if computing the rest is quicker than waiting for it.
func (l *loader) fill(ctx context.Context, p *plan, b *llamastate.Builder) (int, error) {
	watch := l.rates.Watch(l.form.costs(p), pagesInMemory)
	whole := *p // a reader that is late must not see the plan change
	line := readahead.Begin(ctx, len(p.refs), pagesInMemory, watch.Alone(), l.reader.spawn, func(ctx context.Context, i int) page {
		return l.reader.page(ctx, &whole, i)
	})
	defer line.Stop()
	began := time.Now()
	for i, ref := range p.refs {
		pg, there := l.await(line.Next(), watch, began)
		if !there {
			p.notRead(i, why.UnreadQuicker)
			return i, ctx.Err()
		}
		if pg.err != nil {
			l.log.Info("kv tier: page not read", "position", ref.Start, "tier", ref.Tier, "error", pg.err)
			p.notRead(i, why.UnreadDown)
			if errors.Is(pg.err, pagefile.ErrDamaged) {
				p.notRead(i, why.UnreadDamaged)
				if i == 0 && watch.Alone() {
					line.Together()
				}
				l.examine(line, watch, began)
			}
			return i, ctx.Err()
		}
		if err := b.WriteRows(pg.layout, int(ref.Start), ref.Tokens, *pg.buffer); err != nil {
			return 0, err
		}
		l.reader.giveBack(pg.buffer)
		alone := i == 0 && watch.Alone()
		more := watch.Arrived(time.Since(began))
		if alone {
			line.Together()
		}
		line.Used()
		if !more && !l.always {
			p.notRead(i+1, why.UnreadQuicker)
			return i + 1, nil
		}
	}
	return len(p.refs), nil
}

// examine reads the pages behind a damaged one, so that every damaged page is found: a damaged page
// in its place would count as stored when the prompt's pages are stored again. The request waits
// for that as long as for one page.
func (l *loader) examine(line *readahead.Line[page], watch *rates.Watch, began time.Time) {
	late := l.after(time.Until(began.Add(watch.Deadline())))
	for {
		line.Used()
		read := line.Next()
		if read == nil {
			return
		}
		select {
		case pg := <-read:
			if pg.err == nil { // a read that hangs still uses its buffer
				l.reader.giveBack(pg.buffer)
			}
		case <-late:
			return
		}
	}
}

// await waits for the next page as long as reading it can still be quicker than computing it.
func (l *loader) await(read <-chan page, watch *rates.Watch, began time.Time) (pg page, there bool) {
	select {
	case pg, there = <-read:
		return pg, there
	default:
	}
	if read == nil {
		return page{}, false // the request was given up
	}
	select {
	case pg = <-read:
		return pg, true
	case <-l.after(time.Until(began.Add(watch.Deadline()))):
		watch.GaveUp(time.Since(began))
		return pg, false
	}
}

// streams reports whether a plan's pages are handed to llama-server as a stream: llama-server
// computes nothing while it reads a file, so pages of slow tiers are read before.
func (l *loader) streams(p *plan) bool {
	for _, ref := range p.refs {
		if ref.Tier == tier.Remote {
			return false
		}
	}
	return l.files.asStream(l.form.fileSize(len(p.tokens)))
}

// stream makes the stream of a plan's pages.
func (l *loader) stream(ctx context.Context, p *plan) (*slotfile.File, error) {
	s, err := l.newStream(ctx, p)
	if err != nil {
		return nil, err
	}
	return l.files.Stream(s)
}

// newStream returns the stream of a plan's pages, which the caller closes.
func (l *loader) newStream(ctx context.Context, p *plan) (*stream, error) {
	s := &stream{plan: *p, reader: l.reader, patience: l.patience, log: l.log, began: time.Now(), loaded: make(map[int]*reading)}
	s.slow = func() { l.rates.Probed(l.form.costs(&s.plan).Pages, time.Since(s.began), false) }
	var err error
	if s.rows, err = l.form.shape.Build(&s.heads, p.tokens, l.form.window); err != nil {
		return nil, err
	}
	var starts []int
	for i := range len(p.refs) + 1 {
		starts = append(starts, p.end(i))
	}
	s.parts = divide(s.rows.Spans(), s.rows.Size(), starts, l.partBytes)
	if took := l.rates.Computing(p.held, len(p.tokens)); took > 0 && !l.always {
		s.late = s.began.Add(max(took, l.patience.part))
	}
	// llama-server may read the file after the request was given up.
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}
