package llamatier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry"
)

// Tier keeps the slots of an engine in a store. All methods may be called from several goroutines.
type Tier struct {
	engine   *Engine
	context  int // tokens that a slot has room for
	log      *slog.Logger
	patience patience
	search   bool // Options.Search

	table     *table
	asker     *asker
	saver     *saver
	restorer  *restorer
	stages    *stages
	obstacles *obstacles
	album     *album
	why       engine.Inquirer

	accounting *accounting
	storing    engine.Background // begun while a slot is busy: saves whose pages are being stored, and pages that are being read
}

// New returns a Tier for an engine whose slots hold nothing that is worth keeping.
func New(opt Options) *Tier {
	opt.fill()
	t := &Tier{engine: opt.Engine, context: opt.Context, log: opt.Log, patience: usualPatience, search: opt.Search}
	t.why = engine.NewInquirer(opt.Store, opt.Fingerprint, opt.PageTokens, opt.Recents, opt.Meter)
	t.table = newTable(opt.Slots, opt.Similarity, func(s *slot) interface{ Stop() bool } {
		return opt.AfterFunc(opt.Idle, func() { t.saveIdle(s) })
	})
	t.obstacles = &obstacles{watch: opt.Unstored, log: opt.Log}
	t.asker = &asker{engine: opt.Engine, patience: &t.patience, obstacles: t.obstacles, spawn: t.storing.Spawn, doubts: 1}
	t.album = newAlbum(opt.MediaKey, opt.MediaFile, opt.Log)
	form := form{shape: opt.Shape, window: opt.Window, pageTokens: opt.PageTokens, root: opt.Fingerprint}
	disk := &disk{engine.Disk[Store]{Store: opt.Store, Patience: engine.UsualPatience}}
	files := &files{Files: opt.Files, disk: disk}
	actor := &actor{engine: opt.Engine, asker: t.asker, drafts: opt.Drafts, patience: &t.patience, obstacles: t.obstacles, table: t.table, log: opt.Log}
	reader := &reader{store: disk, form: form}
	gate := &engine.Gate{
		Rates: opt.Rates, Always: opt.AlwaysRestore, Meter: opt.Meter, Log: opt.Log, Spawn: t.storing.Spawn, After: opt.After,
	}
	t.saver = &saver{
		form: form, files: files, pages: &pages{store: disk, form: form, meter: opt.Meter},
		judge: &judge{window: opt.Window, table: t.table, asker: t.asker, noShift: opt.NoShift, drafts: opt.Drafts, mistaken: opt.Mistaken},
		table: t.table, asker: t.asker, actor: actor, rates: opt.Rates, patience: &t.patience, obstacles: t.obstacles, album: t.album,
		spawn: t.storing.Spawn, saving: make(chan struct{}, 1), always: opt.AlwaysRestore,
	}
	t.restorer = &restorer{
		form: form, table: t.table, asker: t.asker, actor: actor, files: files,
		planner: &planner{
			store: disk, form: form, reader: reader, gate: gate, lossy: opt.Lossy, drafts: opt.Drafts,
		},
		loader: &loader{
			form: form, files: files, reader: reader, gate: gate, patience: &t.patience,
			partBytes: opt.PartBytes, log: opt.Log,
		},
		gate: gate, meter: opt.Meter, log: opt.Log, save: t.saver.saveFirst,
	}
	t.stages = &stages{form: form, files: files, rates: opt.Rates, control: opt.Control, user: opt.UserStart, always: opt.AlwaysRestore}
	t.accounting = &accounting{table: t.table, asker: t.asker, why: &t.why, rates: opt.Rates, pageTokens: opt.PageTokens, album: t.album}
	if !opt.NoShift {
		t.accounting.shifts = opt.Context
	}
	return t
}

// Begin waits for a slot for a request, chooses it, and restores stored pages into it. The engine may still
// read these when Begin returns, and answers the request after that. The caller calls End or Drop. Begin
// returns ErrClosed, ErrTaken, ErrSeparate or an error of ctx.
func (t *Tier) Begin(ctx context.Context, r Request) (*Turn, error) {
	r.beside = !r.Loose && t.restorer.once()
	if r.Loose = r.Loose && len(t.table.slots) > 1; !r.Loose {
		return t.begin(ctx, r)
	}
	if !t.searches(r) {
		return nil, ErrTaken
	}
	if err := t.alone(ctx, r.Tenant); err != nil {
		return nil, err
	}
	select {
	case t.table.searching <- struct{}{}: // no other request is on its way
	case <-ctx.Done():
		t.table.leave()
		return nil, ctx.Err()
	}
	return t.searched(ctx, func() (*Turn, error) { return t.begin(ctx, r) })
}

// searches reports whether the slot of a request is looked for that the engine chooses.
func (t *Tier) searches(r Request) bool { return t.search && !r.Private }

func (t *Tier) begin(ctx context.Context, r Request) (*Turn, error) {
	if t.table.isClosed() {
		return nil, ErrClosed
	}
	if r.Loose && t.table.unknownRuns() {
		return nil, ErrTaken
	}
	r = t.album.expand(r)
	s, err := t.takeApart(ctx, r)
	if err != nil {
		return nil, err
	}
	s, taken, err := t.settle(ctx, s, r)
	if r.Loose && (t.table.unknownRuns() || s.mayBegin()) {
		err = ErrTaken
	}
	if err == nil && s.tenant != r.Tenant {
		limited, stop := context.WithTimeout(ctx, t.patience.apart)
		err = apart(ctx, t.separate(limited, s, r.Tenant))
		stop()
	}
	if err = cmp.Or(ctx.Err(), err); err != nil {
		t.table.giveBack(s)
		return nil, err
	}
	u := &Turn{to: t.accounting, s: s, request: r, began: time.Now()}
	u.TooLong = len(r.Tokens) >= t.context
	u.asked = inquire(&t.why, r)
	u.counted = t.asker.latest(ctx)
	u.served = t.table.begin(s, r)
	if t.obstacles.off.Load() || taken || u.TooLong {
		return u, nil
	}
	stored := 0
	var p *plan
	var later *load
	if r.Private {
		t.saver.saveFirst(ctx, s)
		if s.expected.tokens > 0 {
			t.restorer.actor.empty(ctx, s) // nothing is restored for it
		}
		u.held = commonPrefix(s.tokens, r.Tokens)
		s.rewound(u.held)
	} else {
		u.held, p, u.restored, later = t.restorer.restore(ctx, s, r.Tokens, r.media, r.beside)
		if stored = p.found; p.slow != "" { // where the stored prompt ends is not known
			stored = 0
		}
	}
	if later == nil {
		p.tell(u.asked, u.held, t.table)
		u.held, u.restored = s.credit(u.held, u.restored)
	}
	if unknown := t.table.breakUnknown(s); later != nil {
		u.loads = func() {
			u.restored = later.end()
			s.broken = s.broken || unknown
			p.tell(u.asked, u.held, t.table)
		}
	}
	if r.Rest == nil && r.media == nil && !r.Private && !r.AtOnce {
		t.stage(ctx, u, stored, r.Stage)
	}
	return u, nil
}

// take waits for a slot. A request whose slot is searched for has table.searching, which it gives up while
// it waits: requests that have slots wait for that, too.
func (t *Tier) take(ctx context.Context, r Request) (s *slot, err error) {
	if r.Loose {
		if s = t.table.takeFree(r); s != nil {
			return s, nil
		}
		<-t.table.searching
		defer func() { t.table.searching <- struct{}{} }()
	}
	if s, err = t.table.take(ctx, r); err != nil {
		return nil, fmt.Errorf("wait for a slot: %w", err)
	}
	return s, nil
}

// settle returns the slot in which a request will run, and reports whether the engine runs another one in it,
// one of Unknown or one whose client is gone. It is another slot than the busy one if the engine has a free
// one. Settle returns ErrTaken if requests of Unknown run, and the engine may choose another slot.
func (t *Tier) settle(ctx context.Context, s *slot, r Request) (in *slot, taken bool, err error) {
	if !t.table.unknownRuns() && !s.unheard() {
		return s, false, nil
	}
	slots, err := t.asker.left(ctx, s)
	if err != nil || s.id >= len(slots) || !slots[s.id].Running {
		return s, err != nil, nil // such an engine is not asked for more
	}
	if !slices.ContainsFunc(slots, func(other Slot) bool { return !other.Running }) {
		return s, true, nil
	}
	if t.table.unknownRuns() {
		return s, true, ErrTaken
	}
	if other := t.table.takeOther(s, r, slots); other != nil {
		return other, false, nil
	}
	return s, true, nil
}

// stage computes the first parts of a prompt, of which the store has some rows, and saves the slot
// after each.
func (t *Tier) stage(ctx context.Context, u *Turn, stored int, l Listener) {
	s := u.s
	if t.table.unknownRuns() || s.broken {
		return // the slot would not be saved
	}
	first, stop := context.WithTimeout(ctx, t.patience.stage) // the time that was predicted may be far off
	defer stop()
	ends := t.stages.ends(&s.sequence, u.request.Tokens, stored, 1+t.table.beside(s))
	if u.request.Loose && len(ends) > 0 { // others need not wait for so long
		<-t.table.searching
		defer func() { t.table.searching <- struct{}{} }()
	}
	for _, end := range ends {
		most := t.stages.most(s.ended(), end)
		answer, err := t.engine.Prefill(first, s.id, u.request.Tokens[:end], u.request.Others, l.after(u.Staged))
		if !errors.Is(err, errRefused) { // it computes nothing then
			u.computed(end, answer)
		}
		if err != nil {
			t.log.Debug("kv tier: the rest of a prompt is computed at once", "slot", s.id, "error", err)
			return
		}
		u.Staged = answer.after(u.Staged)
		if t.saver.ready(ctx, most) { // the pages of the save before are stored
			t.saver.save(ctx, s, true)
		}
	}
}

// Finds reports whether the engine finds a prompt of some tokens in the slot in which Prefill has computed it.
func (t *Tier) Finds(tokens int) bool { return tokens-1 > t.table.unfound(tokens) }

// Prefill has the engine compute the prompt of a turn up to its last token, behind which a model cannot go back, and
// ends the turn. A request that passes finds the prompt in the slot, which Pass saves. Prefill returns the account of
// the tokens that were computed; nil if the engine computes all of the prompt later.
func (t *Tier) Prefill(ctx context.Context, u *Turn) *Answer {
	u.await()
	s, tokens := u.s, u.request.Tokens[:max(0, len(u.request.Tokens)-1)]
	held := commonPrefix(s.tokens, tokens)
	if t.obstacles.off.Load() || u.TooLong || t.table.unknownRuns() || s.broken { // it would not be saved
		u.Drop()
		return u.Staged
	}
	u.request.Tokens = tokens
	if len(tokens) < held+restoreMin {
		answer := &Answer{Cached: held}
		u.record(answer)
		u.free(answer)
		return u.Staged
	}
	answer, err := t.engine.Prefill(ctx, s.id, tokens, u.request.Others, u.request.Stage.after(u.Staged))
	if err != nil {
		t.log.Debug("kv tier: a prompt is computed with its answers", "slot", s.id, "error", err)
	}
	if errors.Is(err, errRefused) {
		u.Drop()
		return u.Staged
	}
	u.End(answer)
	if answer == nil {
		return u.Staged
	}
	return answer.after(u.Staged)
}

// saveIdle saves a slot that no request has taken.
func (t *Tier) saveIdle(s *slot) {
	if !t.table.takeUnused(s) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	later := t.saver.saveIdle(ctx, s)
	if (later || s.dirty) && !t.obstacles.off.Load() { // another save, or a request in the slot, was not over
		t.table.giveBack(s)
		return
	}
	t.table.give(s)
}

// saveFree saves slots that no request uses, because a request of which nothing is known may
// take any of them. No save begins after patience.saving. The last one goes on when ctx ends.
func (t *Tier) saveFree(ctx context.Context) {
	if t.obstacles.off.Load() {
		return
	}
	began, first := time.Now(), t.table.takeUnsaved()
	if first == nil {
		return
	}
	done := make(chan struct{})
	t.storing.Spawn(func() {
		defer close(done)
		for s := first; s != nil; s = t.table.takeUnsaved() {
			t.saver.save(ctx, s, true)
			later := s.dirty
			t.table.give(s)
			if ctx.Err() != nil || later || t.obstacles.off.Load() || time.Since(began) > t.patience.saving {
				return
			}
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Flush gives up the requests that run, refuses those that wait, saves every slot, and returns when all pages
// are stored. No save begins after ctx has ended, but Flush also waits for an action that llama-server has
// begun, at most patience.end: a caller with less time leaves Flush behind.
func (t *Tier) Flush(ctx context.Context) {
	t.table.close()
	for _, all := range []bool{false, true} { // the engine leaves slots without a client late, and begins requests late
		for id := range t.table.slots {
			s, err := t.table.take(ctx, Request{Slot: id})
			if err != nil {
				return // ctx has ended
			}
			if all || !s.unheard() {
				t.saver.save(ctx, s, true)
			}
			t.table.give(s)
		}
	}
	done := make(chan struct{})
	go func() {
		t.storing.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	t.why.Wait(whyCloseIn)
}

// Unknown notes that the engine answers a request in a slot that it chose itself, until the caller calls end,
// which says whether the engine may have computed anything. If so, no slot is stored until its rows are known
// again, so slots are saved first. Unknown lets actions on slots end, for a while: one that llama-server
// holds back for the request could in turn hold back the requests behind it. The request has no tenant, and no
// other one has begun.
func (t *Tier) Unknown() (end func(computed bool)) {
	t.table.passFirst()
	ends := t.passing()
	return func(computed bool) { ends(computed, false) }
}

// Pass does as Unknown for a request of a tenant, which waits until no slot has rows of another one, also those of
// requests that run. heard says that the engine has answered to the end. Pass returns ErrClosed, ErrSeparate or an
// error of ctx.
func (t *Tier) Pass(ctx context.Context, of Tenant) (end func(computed, heard bool), err error) {
	if err := t.alone(ctx, of); err != nil {
		return nil, err
	}
	return t.passing(), nil
}

func (t *Tier) passing() (end func(computed, heard bool)) {
	ctx, cancel := context.WithTimeout(context.Background(), t.patience.unknown)
	defer cancel()
	t.saveFree(ctx)
	t.table.beginUnknown(ctx)
	return func(computed, heard bool) {
		t.asker.doubt()
		t.table.endUnknown(computed, heard)
	}
}

// Slots describes the slots, for people. Pages of a slot in a tier are not counted here.
func (t *Tier) Slots() []telemetry.Slot { return t.table.describe() }

// Off ends storing and restoring, because rows no longer follow from the model alone.
func (t *Tier) Off(cause telemetry.Obstacle, why string) {
	t.obstacles.turnOff(cause, why)
}
