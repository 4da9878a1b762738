package llamatier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/steady"
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

// streamBytes bounds the parts of a stream that are in memory for one reader, unless one part
// alone is larger.
const streamBytes = 64 << 20

// stream is the file of a plan's pages, of which only the heads exist. Its rows are read from the
// pages when llama-server reads them, one part of the file after another.
type stream struct {
	plan     plan
	reader   *reader // of the plan's pages
	spawn    func(func())
	patience *patience
	slow     func() // notes that rows did not come in time
	log      *slog.Logger

	rows  *llamastate.Builder
	heads heads
	parts []part
	began time.Time
	late  time.Time // from which computing the prompt would have been quicker; zero if not known

	ctx  context.Context
	stop context.CancelFunc

	mu     sync.Mutex
	loaded map[int]*reading // by the index of a part
	spare  []byte           // of a part that was read
	failed error
}

// reading is a part that is read, or was read.
type reading struct {
	done  chan struct{} // closed when buf holds the part, or err is set
	buf   []byte        // nobody may use it before
	err   error
	users int // of buf, which is not used for another part meanwhile; stream.mu guards it
}

// errLate reports rows that did not come in time.
var errLate = errors.New("rows do not come in time")

// Size implements slotfile.Source.
func (s *stream) Size() int64 { return s.rows.Size() }

// Close implements slotfile.Source.
func (s *stream) Close() error {
	s.stop()
	return nil
}

// ReadAt implements slotfile.Source. Nothing is read any more after an error.
func (s *stream) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && off < s.Size() {
		i, _ := slices.BinarySearchFunc(s.parts, off, func(p part, off int64) int { return cmp.Compare(p.to, off+1) })
		l := s.load(i)
		if err := s.await(l); err != nil {
			return n, err
		}
		copied := copy(p[n:], l.buf[off-s.parts[i].from:])
		n, off = n+copied, off+int64(copied)
		s.mu.Lock()
		l.users--
		s.mu.Unlock()
	}
	return n, nil
}

// load begins to read a part, and the next one behind it. The caller is a user of the part. It
// returns nil after an error.
func (s *stream) load(i int) *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, l := range s.loaded {
		if other != i && other != i+1 {
			delete(s.loaded, other)
			if l.users == 0 && steady.Ended(l.done, 0) { // nobody writes to buf any more
				s.spare = l.buf
			}
		}
	}
	for _, next := range []int{i, i + 1} {
		ahead := next > i && (next == len(s.parts) || s.parts[i].size()+s.parts[next].size() > streamBytes)
		if s.loaded[next] != nil || s.failed != nil || ahead {
			continue
		}
		l := &reading{done: make(chan struct{}), buf: s.bufferLocked(s.parts[next].size())}
		s.loaded[next] = l
		s.spawn(func() {
			defer close(l.done)
			l.err = s.fill(&s.parts[next], l.buf)
		})
	}
	l := s.loaded[i]
	if l != nil {
		l.users++
	}
	return l
}

// bufferLocked returns a buffer of zeros.
func (s *stream) bufferLocked(size int64) []byte {
	buf := s.spare
	if s.spare = nil; int64(cap(buf)) < size {
		return make([]byte, size)
	}
	clear(buf[:size])
	return buf[:size]
}

// await waits for a part. The first error is the stream's.
func (s *stream) await(l *reading) error {
	err := errLate
	if l != nil && (s.late.IsZero() || time.Now().Before(s.late)) {
		select {
		case <-l.done:
			err = l.err
		case <-time.After(s.patience.part):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil && err != nil {
		s.failed = err
		s.log.Info("kv tier: llama-server does not get all rows", "error", err)
		if errors.Is(err, errLate) {
			s.slow()
		}
	}
	return s.failed
}

func (s *stream) fill(p *part, buf []byte) error {
	s.heads.copyTo(buf, p.from)
	rows := s.rows.To(&rangeWriter{buf, p.from})
	pages, ctx := errgroup.WithContext(s.ctx)
	pages.SetLimit(engine.PagesAtOnce)
	for i := p.first; i < p.end && ctx.Err() == nil; i++ {
		sections := p.sections
		if i == len(s.plan.refs)-1 {
			sections = p.ends
		}
		if len(sections) > 0 {
			pages.Go(func() error { return s.page(ctx, i, sections, rows) })
		}
	}
	return cmp.Or(pages.Wait(), s.ctx.Err())
}

// page reads some sections of a page, and puts their rows into a part of the file.
func (s *stream) page(ctx context.Context, i int, sections []pagefile.Section, rows *llamastate.Builder) error {
	ref := s.plan.refs[i]
	layout, err := pagefile.NewLayout(sections, ref.Stored)
	if err != nil {
		return err
	}
	buf, err := s.reader.read(ctx, &s.plan, i, layout)
	if err != nil {
		return fmt.Errorf("read the page at position %d: %w", ref.Start, err)
	}
	defer s.reader.giveBack(buf)
	return rows.WriteRows(layout, int(ref.Start), ref.Tokens, *buf)
}

// part is a range of a file that is read from pages at once: sections of all pages, or one
// section of some pages.
type part struct {
	from, to    int64              // in the file
	sections    []pagefile.Section // of pages before the last one
	ends        []pagefile.Section // of the last page
	first, end  int                // pages
	ofSomePages bool
}

func (p *part) size() int64 { return p.to - p.from }

// divide divides a file of size bytes into parts of most bytes each, if possible. Spans that are
// stored by column are not divided: each of their pages has bytes everywhere. starts are the
// positions at which pages begin, and the end of the last one.
func divide(spans []llamastate.Span, size int64, starts []int, most int64) []part {
	var parts []part
	pages := len(starts) - 1
	for _, span := range spans {
		from := int64(0)
		if n := len(parts); n > 0 {
			from = parts[n-1].to
		}
		switch n := len(parts); {
		case span.Row > 0 && span.Size > most:
			parts = append(parts, dividePages(span, starts, from, most)...)
		case n > 0 && !parts[n-1].ofSomePages && span.Offset+span.Size-parts[n-1].from <= most:
			parts[n-1].add(span)
		default:
			parts = append(parts, part{from: from, end: pages})
			parts[n].add(span)
		}
	}
	parts[len(parts)-1].to = size
	return parts
}

// add adds a span to the end of a part.
func (p *part) add(span llamastate.Span) {
	p.to = span.Offset + span.Size
	p.ends = append(p.ends, span.Section)
	if !span.End {
		p.sections = append(p.sections, span.Section)
	}
}

// dividePages divides a span, with the heads before it.
func dividePages(span llamastate.Span, starts []int, from, most int64) []part {
	var parts []part
	pages := len(starts) - 1
	for first := 0; first < pages; {
		p := part{from: from, first: first, end: first + 1, ofSomePages: true}
		p.add(span)
		for p.end < pages && int64(starts[p.end+1]-starts[first])*span.Row <= most {
			p.end++
		}
		p.to = span.Offset + int64(starts[p.end])*span.Row
		parts = append(parts, p)
		first, from = p.end, p.to
	}
	return parts
}

// rangeWriter writes into the bytes of a range of a file.
type rangeWriter struct {
	buf  []byte
	from int64
}

// WriteAt implements io.WriterAt.
func (w *rangeWriter) WriteAt(p []byte, off int64) (int, error) {
	if off < w.from || off+int64(len(p)) > w.from+int64(len(w.buf)) {
		return 0, fmt.Errorf("rows at byte %d do not belong to the %d bytes from %d on", off, len(w.buf), w.from)
	}
	return copy(w.buf[off-w.from:], p), nil
}

// heads are the bytes of a file that belong to no row, in order.
type heads struct{ pieces []head }

type head struct {
	off   int64
	bytes []byte
}

// WriteAt implements io.WriterAt.
func (h *heads) WriteAt(p []byte, off int64) (int, error) {
	h.pieces = append(h.pieces, head{off, slices.Clone(p)})
	return len(p), nil
}

// copyTo copies the heads in a range of the file.
func (h *heads) copyTo(buf []byte, from int64) {
	for _, p := range h.pieces {
		if at := p.off - from; at < int64(len(buf)) && at+int64(len(p.bytes)) > 0 {
			copy(buf[max(0, at):], p.bytes[max(0, -at):])
		}
	}
}
