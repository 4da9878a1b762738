package llamatier

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/why"
)

// restore puts stored pages of a prompt into a busy slot, and returns the number of tokens that
// the slot held before, and the pages that were found. A slot whose rows must not be stored is of less use: it is replaced at
// the price of a page that must be computed again.
func (t *Tier) restore(ctx context.Context, s *slot, tokens []int32) (held int, p *plan, r restored) {
	held = t.held(ctx, s, tokens)
	if held < len(s.tokens) {
		t.save(ctx, s, true) // the engine is about to drop tokens
		held = commonPrefix(s.tokens, tokens)
	}
	s.rewound(held)
	if t.opt.Shape.HasEnd() && held < min(s.loaded, len(s.tokens)) {
		held, s.loaded = 0, 0 // the engine would begin anew
	}
	began := time.Now()
	spoiled, loss := t.table.spoiled(s), 0
	if spoiled {
		loss = min(held, t.opt.PageTokens+restoreMin)
	}
	p = t.plan(ctx, tokens, held, loss)
	if !p.worth() {
		if p.unread == why.UnreadNone && p.found > held {
			p.unread = why.UnreadQuicker // than replacing the slot for so few tokens
		}
		if spoiled && held < restoreMin {
			t.actor.empty(ctx, s)
		}
		return held, p, restored{}
	}
	t.save(ctx, s, true)
	if err := t.tryRestore(ctx, s, p); err != nil {
		t.opt.Log.Warn("kv tier: pages not restored, the prompt is computed", "slot", s.id, "error", err)
		p.notRead(0, why.UnreadRoom)
		return held, p, restored{}
	}
	if !p.worth() { // its tier became slow
		return held, p, restored{}
	}
	took := time.Since(began)
	t.opt.Log.Info("kv tier: restored", "slot", s.id, "tokens", len(p.tokens), "lossy", p.lossy(), "prompt", len(tokens), "took", took)
	return held, p, t.restoredFrom(p, held, took)
}

// usedLately is the time after which a slot may be empty: llama-server may have slept.
const usedLately = time.Second

// held returns how many tokens of a prompt a busy slot holds. llama-server empties a slot when
// another one needs the room. The only slot keeps the tokens of its last request.
func (t *Tier) held(ctx context.Context, s *slot, tokens []int32) int {
	sure := len(t.table.slots) == 1 && !s.unheard() && !t.table.unknownIn(s) && time.Since(s.used) < usedLately
	if !sure && commonPrefix(s.tokens, tokens) >= restoreMin {
		if p, err := t.asker.idle(ctx, s.id); err == nil {
			s.tokens = s.tokens[:min(p.Held, len(s.tokens))]
		}
	}
	return commonPrefix(s.tokens, tokens)
}

// tryRestore restores a plan's pages. The plan is cut to the pages that were read in time; the
// slot stays as it is if they are not worth it any more.
func (t *Tier) tryRestore(ctx context.Context, s *slot, p *plan) error {
	f, err := t.build(ctx, p)
	if err != nil || f == nil {
		return err
	}
	s.emptied()
	s.broken = true // until the engine has answered
	began := time.Now()
	err = t.restoreInto(ctx, s, f.Name, len(p.tokens), func() { t.files.drop(f) })
	switch {
	case errors.Is(err, errHeldBack):
		return err
	case err != nil:
		t.files.Refused(f)
	}
	t.files.drop(f)
	if err != nil {
		return err
	}
	if !f.Streamed() {
		t.opt.Rates.Stepped(t.form.costs(p), time.Since(began))
	}
	s.tokens, s.ends, s.loaded = p.tokens, []int{len(p.tokens)}, len(p.tokens)
	s.lossy = p.lossy() > 0
	s.broken = s.lossy
	return nil
}

// build makes a file of a plan's pages. It returns nil if too few pages could be read in time.
func (t *Tier) build(ctx context.Context, p *plan) (*slotfile.File, error) {
	if t.streams(p) {
		return t.stream(ctx, p)
	}
	f, err := t.files.create(t.form.fileSize(len(p.tokens)))
	if err != nil {
		return nil, err
	}
	b, err := t.opt.Shape.Build(t.files.disk.writer(f), p.tokens, t.opt.Window)
	if err != nil {
		t.files.drop(f)
		return nil, err
	}
	n, err := t.fill(ctx, p, b)
	if err == nil && n == len(p.refs) {
		return f, nil
	}
	defer t.files.drop(f)
	if t.opt.Shape.HasEnd() {
		n = 0 // a window or a state belongs to the end of the last page
	}
	if p.cut(n); err != nil || !p.worth() {
		return nil, err
	}
	return t.first(p, b, f)
}

// first makes a file of a plan's pages, which are the first ones of another file.
func (t *Tier) first(p *plan, longer *llamastate.Builder, from *slotfile.File) (*slotfile.File, error) {
	f, err := t.files.create(t.form.fileSize(len(p.tokens)))
	if err != nil {
		return nil, err
	}
	b, err := t.opt.Shape.Build(t.files.disk.writer(f), p.tokens, 0)
	if err == nil {
		_, err = within(t.disk, t.patience.page, func() (struct{}, error) { return struct{}{}, b.CopyRows(from, longer) })
	}
	if err != nil {
		t.files.drop(f)
		return nil, err
	}
	return f, nil
}

// fill writes a plan's pages into a file, and returns how many leading pages the file has. They
// are fewer than the plan's if computing the rest is quicker than waiting for it.
func (t *Tier) fill(ctx context.Context, p *plan, b *llamastate.Builder) (int, error) {
	watch := t.opt.Rates.Watch(t.form.costs(p), pagesInMemory)
	whole := *p // a reader that is late must not see the plan change
	line := readahead.Begin(ctx, len(p.refs), pagesInMemory, watch.Alone(), t.storing.spawn, func(ctx context.Context, i int) page {
		return t.readPage(ctx, &whole, i)
	})
	defer line.Stop()
	began := time.Now()
	for i, ref := range p.refs {
		pg, there := t.await(line.Next(), watch, began)
		if !there {
			p.notRead(i, why.UnreadQuicker)
			return i, ctx.Err()
		}
		if pg.err != nil {
			t.opt.Log.Info("kv tier: page not read", "position", ref.Start, "tier", ref.Tier, "error", pg.err)
			p.notRead(i, why.UnreadDown)
			if errors.Is(pg.err, pagefile.ErrDamaged) {
				p.notRead(i, why.UnreadDamaged)
				if i == 0 && watch.Alone() {
					line.Together()
				}
				t.examine(line, watch, began)
			}
			return i, ctx.Err()
		}
		if err := b.WriteRows(pg.layout, int(ref.Start), ref.Tokens, *pg.buffer); err != nil {
			return 0, err
		}
		t.buffers.Put(pg.buffer)
		alone := i == 0 && watch.Alone()
		more := watch.Arrived(time.Since(began))
		if alone {
			line.Together()
		}
		line.Used()
		if !more && !t.opt.AlwaysRestore {
			p.notRead(i+1, why.UnreadQuicker)
			return i + 1, nil
		}
	}
	return len(p.refs), nil
}

// examine reads the pages behind a damaged one, so that every damaged page is found: a damaged page
// in its place would count as stored when the prompt's pages are stored again. The request waits
// for that as long as for one page.
func (t *Tier) examine(line *readahead.Line[page], watch *rates.Watch, began time.Time) {
	late := t.opt.After(time.Until(began.Add(watch.Deadline())))
	for {
		line.Used()
		read := line.Next()
		if read == nil {
			return
		}
		select {
		case pg := <-read:
			if pg.err == nil { // a read that hangs still uses its buffer
				t.buffers.Put(pg.buffer)
			}
		case <-late:
			return
		}
	}
}

// await waits for the next page as long as reading it can still be quicker than computing it.
func (t *Tier) await(read <-chan page, watch *rates.Watch, began time.Time) (pg page, there bool) {
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
	case <-t.opt.After(time.Until(began.Add(watch.Deadline()))):
		watch.GaveUp(time.Since(began))
		return pg, false
	}
}

// pagesInMemory bounds the pages that a restore holds beside its file: one that is being
// written to the file, and two that are being read.
const pagesInMemory = 3

// page is a page that was read.
type page struct {
	layout pagefile.Layout
	buffer *[]byte
	err    error
}

// readPage reads a page of a plan.
func (t *Tier) readPage(ctx context.Context, p *plan, i int) (pg page) {
	ref := p.refs[i]
	if pg.layout, pg.err = t.form.layout(p, i, ref.Stored); pg.err != nil {
		return pg
	}
	pg.buffer = t.takeBuffer(pg.layout.Size())
	pg.err = t.opt.Store.Read(ctx, ref, p.tokens[ref.Start:int(ref.Start)+ref.Tokens], pg.layout, *pg.buffer)
	return pg
}

// takeBuffer returns a buffer for a page.
func (t *Tier) takeBuffer(size int) *[]byte {
	buf, ok := t.buffers.Get().(*[]byte)
	if !ok || cap(*buf) < size {
		b := make([]byte, size)
		buf = &b
	}
	*buf = (*buf)[:size]
	return buf
}
