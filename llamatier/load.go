package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/telemetry/why"
)

// loader makes the files of plans, which the engine restores.
type loader struct {
	form      form
	files     *files
	reader    *reader
	gate      *engine.Gate
	patience  *patience
	partBytes int64 // Options.PartBytes
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
	b, err := l.form.shape.Build(l.files.disk.writer(f), p.tokens, p.built(), l.form.window)
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
	b, err := l.form.shape.Build(l.files.disk.writer(f), p.tokens, p.built(), 0)
	if err == nil {
		err = l.files.disk.do(l.files.disk.Patience.Page, func() error { return b.CopyRows(from, longer) })
	}
	if err != nil {
		l.files.drop(f)
		return nil, err
	}
	return f, nil
}

// fill writes a plan's pages into a file, and returns how many leading pages the file has. They
// are fewer than the plan's if computing the rest is quicker than waiting for it.
func (l *loader) fill(ctx context.Context, p *plan, b *llamastate.Builder) (n int, err error) {
	whole, costs := *p, l.form.costs(p) // a reader that is late must not see the plan change
	reading := engine.Read(ctx, l.gate, costs, false, func(ctx context.Context, i int) page {
		return l.reader.page(ctx, &whole, i)
	}, l.reader.drop)
	defer reading.Stop()
	var unread error
	for i, pg := range reading.Pages() {
		ref := p.refs[i]
		if unread = pg.err; unread != nil {
			l.log.Info("kv tier: page not read", "position", ref.Start, "tier", ref.Tier, "error", unread)
			break
		}
		if err := b.WriteRows(pg.layout, int(ref.Start), ref.Tokens, *pg.buffer); err != nil {
			return 0, err
		}
		l.reader.giveBack(pg.buffer)
		n = i + 1
	}
	switch {
	case n == len(p.refs):
		return n, nil
	case errors.Is(unread, pagefile.ErrDamaged):
		p.notRead(n, why.UnreadDamaged)
		reading.Examine()
	case unread != nil:
		p.notRead(n, why.UnreadDown)
	default:
		p.notRead(n, why.UnreadQuicker)
		if reading.GivenUp() { // the next plan probes the tier
			l.gate.Skip(ctx, costs, n, nil)
		}
	}
	return n, ctx.Err()
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
	s := &stream{plan: *p, reader: l.reader, spawn: l.gate.Spawn, patience: l.patience, log: l.log, began: time.Now(), loaded: make(map[int]*reading)}
	s.slow = func() { l.gate.Rates.Probed(l.form.costs(&s.plan).Pages, time.Since(s.began), false) }
	var err error
	if s.rows, err = l.form.shape.Build(&s.heads, p.tokens, p.built(), l.form.window); err != nil {
		return nil, err
	}
	var starts []int
	for i := range len(p.refs) + 1 {
		starts = append(starts, endOf(p.refs[:i]))
	}
	s.parts = divide(s.rows.Spans(), s.rows.Size(), starts, l.partBytes)
	if took := l.gate.Rates.Computing(p.held, len(p.tokens)); took > 0 && !l.gate.Always {
		s.late = s.began.Add(max(took, l.patience.part))
	}
	// llama-server may read the file after the request was given up.
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}
