package llamatier

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// saveTimeout bounds the time that a save may hold a slot.
const saveTimeout = time.Minute

type saver struct {
	form      form
	files     *files
	pages     *pages
	judge     *judge
	table     *table
	asker     *asker
	actor     *actor
	rates     *rates.Rates
	patience  *patience
	obstacles *obstacles
	album     *album
	spawn     func(func())  // for pages that are stored behind a save
	saving    chan struct{} // one element while a file of a save exists
	always    bool          // slots are saved at any cost

	rested atomic.Pointer[time.Time] // when idle slots are saved again although requests run; nil before the first save
}

const (
	// heldShare is the part of the time for which saves of idle slots may hold up the answers in others:
	// llama-server computes for no slot while it saves one.
	heldShare = 0.01
	// restMost is the time after a slot's last request at which it is saved nevertheless.
	restMost = time.Minute
	// storedMost bounds the look at the pages of a slot before it is saved.
	storedMost = time.Second
)

// saveIdle saves a busy slot that no request wants, or reports that it is saved some time later, because a
// request runs in another one and was held up lately.
func (v *saver) saveIdle(ctx context.Context, s *slot) (later bool) {
	if until := v.rested.Load(); until != nil && time.Now().Before(*until) && time.Since(s.used) < restMost && v.table.beside(s) > 0 {
		return true
	}
	began := time.Now()
	v.save(ctx, s, false)
	rested := time.Now().Add(time.Duration(float64(time.Since(began)) / heldShare))
	v.rested.Store(&rested)
	return false
}

// saveFirst saves a busy slot of which the engine may drop tokens for a request that waits. A slot whose
// save would take longer than computing what it would store is not saved; the time counts for each request
// that it would hold up.
func (v *saver) saveFirst(ctx context.Context, s *slot) {
	if (s.dirty || s.tails) && v.pays(ctx, s) {
		v.save(ctx, s, true)
	}
}

// pays reports whether saving a slot takes less time than computing what is not stored.
func (v *saver) pays(ctx context.Context, s *slot) bool {
	n := len(s.tokens)
	if s.last != nil {
		n = max(n, s.last.seen())
	}
	cost := v.rates.Stepping(saved(s.fileSize(v.form, n))) * time.Duration(1+v.table.beside(s))
	if cost == 0 || v.always { // of the first save nothing is known
		return true
	}
	if v.form.shape.HasEnd() {
		return v.rates.Computing(s.ended(), n) >= cost
	}
	if v.rates.Computing(0, n) < cost {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, storedMost)
	defer stop()
	return v.rates.Computing(len(v.pages.stored(ctx, s.tenant, s.tokens)), n) >= cost
}

// save saves a busy slot and begins to store the pages that are new. The slot may be used again when save
// returns. Tails are stored with tails alone: as long as the engine holds a conversation, its next pages
// replace them. A failure is logged: the tokens are computed again one day.
func (v *saver) save(ctx context.Context, s *slot, tails bool) {
	if !s.dirty && !(tails && s.tails) || v.obstacles.off.Load() {
		return
	}
	s.dirty, s.tails = false, s.tails && !tails
	if s.lossy && s.last != nil && s.last.Cached > 0 {
		return // judge would refuse the saved file
	}
	wait, cancel := ctx, context.CancelFunc(func() {})
	if !v.table.isClosed() {
		wait, cancel = context.WithTimeout(ctx, v.patience.saving)
	}
	defer cancel()
	select { // a saved file takes room
	case v.saving <- struct{}{}:
	case <-wait.Done():
		s.dirty, s.tails = true, true
		return
	}
	if s.unheard() && tails { // an idle slot is saved some time later
		_, _ = v.asker.left(ctx, s) // the slot is looked at again
	}
	f, dropped, err := v.savedFile(ctx, s)
	var state *llamastate.File
	if err == nil {
		state, err = v.read(ctx, f, s)
	}
	if err != nil {
		s.dirty = s.dirty || CauseOf(err) == CauseBusy || ctx.Err() != nil // it is saved some time later
		s.tails = s.tails || s.dirty
		v.obstacles.notStored(s.id, err)
		v.keptBusy(s, err)
		if f != nil {
			v.files.drop(f)
		}
		if !errors.Is(err, errHeldBack) {
			<-v.saving
		}
		return
	}
	s.refused = time.Time{}
	s.learn(v.album, state)
	s.tokens, s.checkpoints = state.Tokens, state.Checkpoints
	of := s.tenant
	ends := v.ends(&s.sequence, state, tails)
	v.spawn(func() {
		defer func() { <-v.saving }()
		defer v.files.drop(f)
		if err := v.files.disk.do(v.files.disk.Patience.Page, v.album.keep); err != nil {
			v.album.log.Debug("kv tier: images are not known to later runs", "error", err)
		}
		if err := v.pages.put(context.WithoutCancel(ctx), of, state, ends, dropped); err != nil {
			v.obstacles.notStored(s.id, err)
			return
		}
		v.obstacles.watch.Sure()
	})
}

// keptBusy tells of a slot that could not be saved for long, because requests of others run in it.
func (v *saver) keptBusy(s *slot, err error) {
	switch {
	case CauseOf(err) != CauseBusy:
		s.refused = time.Time{}
	case s.refused.IsZero():
		s.refused = time.Now()
	case time.Since(s.refused) > v.patience.busy:
		v.obstacles.watch.Doubt(telemetry.ObstacleSlot, err)
	}
}

// ready waits for the pages of a save to be stored, for at most some time.
func (v *saver) ready(ctx context.Context, most time.Duration) bool {
	ctx, stop := context.WithTimeout(ctx, most)
	defer stop()
	select {
	case v.saving <- struct{}{}:
		<-v.saving
		return true
	case <-ctx.Done():
		return false
	}
}

// ends returns the numbers of tokens after which a saved slot gets a tail.
func (v *saver) ends(s *sequence, state *llamastate.File, tails bool) []int {
	n := len(state.Tokens)
	if v.form.shape.HasEnd() {
		if !tails && !v.form.worthEnd(v.rates, s.ended(), n) || !state.End() {
			return nil
		}
		s.rewound(n - 1) // an end that is stored again is noted once
		s.ends = append(s.ends, n)
		return []int{n} // windows and states exist nowhere else
	}
	if !tails {
		return nil
	}
	return []int{n} // rows of a page or tail serve each prompt that begins as they do
}

// savedFile has the engine save a slot into a new file. It returns the positions whose rows the
// file does not have, because they are stored.
func (v *saver) savedFile(ctx context.Context, s *slot) (*slotfile.File, positions, error) {
	none := positions{}
	if v.table.unknownRuns() {
		return nil, none, errUnknownRuns
	}
	p, err := v.asker.idle(ctx, s.id)
	if err == nil && p.Held == 0 {
		err = because(CauseEmpty, "llama-server has emptied it")
	}
	if err != nil {
		return nil, none, err
	}
	var f *slotfile.File
	k := v.sink(ctx, s, p.Held)
	if k != nil {
		f, err = v.files.Stream(k)
	} else {
		f, err = v.files.create(s.fileSize(v.form, p.Held))
	}
	if err != nil {
		return nil, none, err
	}
	began := time.Now()
	err = v.actor.save(ctx, s, f.Name, func() { v.files.drop(f); <-v.saving })
	switch {
	case errors.Is(err, errHeldBack):
		return nil, none, err
	case err != nil:
		v.files.drop(f)
		v.files.Refused(f)
		if k != nil {
			err = errors.Join(k.failure(), err)
		}
		return nil, none, err
	}
	if v.table.beside(s) == 0 { // a save waits for batches of others
		v.rates.Stepped(rates.Chain{Pages: []rates.Page{saved(s.fileSize(v.form, p.Held))}, Then: saving}, time.Since(began))
	}
	if k == nil {
		return f, none, nil
	}
	defer v.files.drop(f)
	return k.finish()
}

// sink returns the sink of a slot that holds a number of tokens; nil if a file is better.
func (v *saver) sink(ctx context.Context, s *slot, held int) *sink {
	saved := s.fileSize(v.form, held)
	if !v.files.asStream(saved) {
		return nil
	}
	// The first page and the last one are kept, and that in which the prompt may get a tail.
	size := v.form.pageTokens
	stored := v.pages.stored(ctx, s.tenant, s.tokens[:min(len(s.tokens), s.prompt/size*size)])
	if len(stored) <= size {
		return nil
	}
	return &sink{form: v.form, files: v.files, stored: stored, saved: saved}
}

// read reads the heads of a file into which the engine has just saved a slot, and returns an error if the
// slot's rows must not be stored. The engine has run no other request in the slot since the save.
func (v *saver) read(ctx context.Context, f *slotfile.File, s *slot) (*llamastate.File, error) {
	p, err := v.asker.idle(ctx, s.id)
	if err != nil {
		return nil, err
	}
	if err := v.judge.rows(ctx, s, p); err != nil {
		return nil, err
	}
	state, err := within(v.files.disk, v.files.disk.Patience.Page, func() (*llamastate.File, error) {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return v.form.shape.Open(f, info.Size())
	})
	if err != nil {
		return nil, err
	}
	v.album.read(state)
	return state, v.judge.file(&s.sequence, p, state)
}

type positions struct{ start, end int }

// overlap reports whether some of these positions are from start to end.
func (p positions) overlap(start, end int) bool { return start < p.end && p.start < end }

// pages stores the pages of saved slots.
type pages struct {
	store *disk
	form  form
	meter *telemetry.Meter
}

// minTail is the part of a page below which an incomplete last page is not stored.
const minTail = 32

// put stores the full pages of a saved slot that the store does not have, and tails that
// end after some numbers of tokens. The file has no rows of dropped positions.
func (p *pages) put(ctx context.Context, of Tenant, state *llamastate.File, tails []int, dropped positions) error {
	size := p.form.pageTokens
	parent := p.form.root
	for start := 0; start < len(state.Tokens); start += size {
		ends := []int{start + size}
		for _, end := range tails {
			least := 1
			if !p.form.shape.HasEnd() {
				least = max(1, size/minTail)
			}
			if end-start >= least && end-start < size && !slices.Contains(ends, end) {
				ends = append(ends, end)
			}
		}
		var next pagefile.Key
		for _, end := range ends {
			if end > len(state.Tokens) {
				continue
			}
			tokens := state.Tokens[start:end]
			key := pagefile.ChainKey(parent, tokens, pagefile.MediaWithin(of.media(), start, end-start))
			if end == start+size {
				next = key
			}
			if has, _ := p.store.Has(ctx, key); has {
				continue
			}
			if dropped.overlap(start, end) {
				return errors.New("a page was removed meanwhile") // nobody would find those behind it
			}
			if err := p.putOne(ctx, of, state, parent, start, tokens); err != nil {
				return err
			}
		}
		parent = next
	}
	return nil
}

func (p *pages) putOne(ctx context.Context, of Tenant, state *llamastate.File, parent pagefile.Key, start int, tokens []int32) error {
	sections := p.form.shape.Sections()
	if start+len(tokens) == len(state.Tokens) && state.End() {
		sections = p.form.shape.EndSections(state.WindowRows())
	}
	layout, err := pagefile.NewLayout(sections, len(tokens))
	if err != nil {
		return err
	}
	page := &pagefile.Page{Parent: parent, Start: uint32(start), Tokens: tokens, Media: pagefile.MediaWithin(of.media(), start, len(tokens)), Layout: layout, Payload: make([]byte, layout.Size())}
	if err := state.ReadRows(layout, start, page.Payload); err != nil {
		return err
	}
	if err = p.store.put(ctx, page); err != nil {
		p.meter.Add("ollama_kv_dropped_pages_total", 1)
		if !errors.Is(err, steady.ErrHung) {
			err = told{err}
		}
		return err
	}
	kind := "page"
	if len(tokens) < p.form.pageTokens {
		kind = "tail"
	}
	p.meter.Add(telemetry.Series("ollama_kv_sealed_pages_total", "kind", kind), 1)
	return nil
}

// stored returns the first of some tokens, those whose pages are stored.
func (p *pages) stored(ctx context.Context, of Tenant, tokens []int32) []int32 {
	size, parent := p.form.pageTokens, p.form.root
	for start := 0; ; start += size {
		if start+size > len(tokens) || ctx.Err() != nil {
			return tokens[:start]
		}
		key := pagefile.ChainKey(parent, tokens[start:start+size], pagefile.MediaWithin(of.media(), start, size))
		if has, _ := p.store.Has(ctx, key); !has {
			return tokens[:start]
		}
		parent = key
	}
}
