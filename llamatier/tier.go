package llamatier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Store is the page store, a *diskstore.Store.
type Store interface {
	Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []diskstore.Ref
	ChainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref
	Has(key pagefile.Key) bool
	LayoutOf(ctx context.Context, ref diskstore.Ref) (pagefile.Layout, error)
	TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []diskstore.Ref
	Put(ctx context.Context, p *pagefile.Page) error
	Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) error
}

// Options configures a Tier.
type Options struct {
	Engine  *Engine
	Shape   *llamastate.Shape // of the engine's files
	Slots   int               // number of the engine's slots
	Context int               // tokens that a slot has room for
	Window  int               // positions that the engine's window keeps; 0 without a window
	NoShift bool              // the engine never shifts the context of a full slot

	// Control reports whether a token is a control token, as those that begin the parts of a
	// chat are; nil if that is not known.
	Control func(token int32) bool

	Store       Store
	Fingerprint pagefile.Key // of the store
	PageTokens  int          // of a page; 0 means diskstore.DefaultPageTokens

	// Lossy also restores lossy pages, where they reach a page further than exact ones. A slot
	// with such rows is not stored. Without Lossy no lossy page is looked up, and in a model with
	// windows or recurrent layers none ever is.
	Lossy bool

	// Files makes the files through which the engine saves and restores slots.
	Files *slotfile.Files

	// PartBytes is the usual size of the parts in which a stream is read from pages; 0 means
	// 16 MiB.
	PartBytes int64

	// Idle is the time after a request at which a slot is saved.
	Idle time.Duration

	// Rates decides between restoring and computing; nil means rates that are forgotten.
	Rates *rates.Rates

	// Meter counts prompts and pages; nil counts nothing.
	Meter *telemetry.Meter
	// Recents keeps the latest prompts in memory, to say why a prompt was computed; nil says nothing.
	Recents *why.Recents

	// Unstored is told of slots that should have been stored and do not reach the store, which
	// tells of its own failures. Nil means that only Log is.
	Unstored *unstored.Watch

	// AlwaysRestore restores stored pages although computing may be quicker, for tests.
	AlwaysRestore bool

	// After is time.After; nil means that.
	After func(time.Duration) <-chan time.Time

	// AfterFunc is time.AfterFunc; nil means that.
	AfterFunc func(d time.Duration, f func()) interface{ Stop() bool }

	Log *slog.Logger
}

// Tier keeps the slots of an engine in a store. All methods may be called from several
// goroutines.
type Tier struct {
	opt Options

	disk    *disk      // opt.Store
	storing background // saves whose pages are being stored, and pages that are being read

	form      form
	table     *table
	actor     *actor
	files     *files
	obstacles *obstacles
	asker     *asker
	counter   *counter
	planner   *planner
	loader    *loader
	saver     *saver
	restorer  *restorer
	stages    *stages
	patience  patience
	why       *inquirer
}

// New returns a Tier for an engine whose slots hold nothing that is worth keeping.
func New(opt Options) *Tier {
	if opt.AfterFunc == nil {
		opt.AfterFunc = func(d time.Duration, f func()) interface{ Stop() bool } { return time.AfterFunc(d, f) }
	}
	if opt.After == nil {
		opt.After = time.After
	}
	if opt.Rates == nil {
		opt.Rates = rates.New()
	}
	if opt.Unstored == nil {
		opt.Unstored = unstored.New(opt.Log, opt.Meter)
	}
	opt.PageTokens = cmp.Or(opt.PageTokens, diskstore.DefaultPageTokens)
	if opt.PartBytes == 0 {
		opt.PartBytes = partBytes
	}
	t := &Tier{opt: opt, patience: usualPatience, why: newInquirer(&opt)}
	t.disk = &disk{store: opt.Store, patience: &t.patience}
	t.opt.Store = t.disk
	t.form = form{shape: opt.Shape, window: opt.Window, pageTokens: opt.PageTokens, root: opt.Fingerprint}
	t.files = &files{Files: opt.Files, disk: t.disk}
	t.obstacles = &obstacles{watch: opt.Unstored, log: opt.Log}
	t.asker = &asker{engine: opt.Engine, patience: &t.patience, obstacles: t.obstacles}
	t.counter = &counter{asker: t.asker, spawn: t.storing.spawn}
	t.table = newTable(opt.Slots, func(s *slot) interface{ Stop() bool } {
		return opt.AfterFunc(opt.Idle, func() { t.saveIdle(s) })
	})
	t.actor = &actor{engine: opt.Engine, patience: &t.patience, obstacles: t.obstacles, table: t.table, log: opt.Log}
	read := &reader{store: t.disk, form: t.form, spawn: t.storing.spawn}
	t.planner = &planner{
		store: t.disk, form: t.form, reader: read, rates: opt.Rates, patience: &t.patience,
		lossy: opt.Lossy, always: opt.AlwaysRestore, meter: opt.Meter, log: opt.Log,
	}
	t.loader = &loader{
		form: t.form, files: t.files, reader: read, rates: opt.Rates, patience: &t.patience,
		partBytes: opt.PartBytes, always: opt.AlwaysRestore, after: opt.After, log: opt.Log,
	}
	t.saver = &saver{
		form: t.form, files: t.files, pages: &pages{store: t.disk, form: t.form, meter: opt.Meter},
		table: t.table, asker: t.asker, actor: t.actor, rates: opt.Rates, patience: &t.patience, obstacles: t.obstacles,
		spawn: t.storing.spawn, noShift: opt.NoShift, saving: make(chan struct{}, 1),
	}
	t.restorer = &restorer{
		form: t.form, table: t.table, asker: t.asker, actor: t.actor, planner: t.planner, loader: t.loader, files: t.files,
		rates: opt.Rates, meter: opt.Meter, log: opt.Log, save: t.saver.save,
	}
	t.stages = &stages{form: t.form, files: t.files, rates: opt.Rates, control: opt.Control}
	return t
}

// Shape finds the shape of an engine's files: it computes one token in a slot, saves the slot
// and empties it again. The engine must not have answered any request yet. Shape returns an
// error when ctx ends, although the engine may still use its file.
func Shape(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	if _, err := e.Prefill(ctx, 0, []int32{0}); err != nil {
		return nil, err
	}
	learned := make(chan struct{})
	var shape *llamastate.Shape
	var err error
	go func() { // a disk may hang
		defer close(learned)
		shape, err = learn(ctx, e, files)
	}()
	select {
	case <-learned:
		return shape, err
	case <-ctx.Done():
		return nil, fmt.Errorf("llama-server does not save a slot: %w", ctx.Err())
	}
}

// learn has the engine save a slot, and reads the file's shape.
func learn(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	f, err := files.New(shapeBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing is lost: the file was learned from
	if err := errors.Join(e.Save(ctx, 0, f.Name), e.Erase(ctx, 0)); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	shape, err := llamastate.Learn(f, info.Size())
	if err != nil {
		return nil, err
	}
	return shape, nil
}

// shapeBytes is about the size of the file of one token: the states of recurrent layers may be
// some 10 MB.
const shapeBytes = 64 << 20

// Turn is a request that has a slot.
type Turn struct {
	// Restored is the number of tokens that were put into the slot for the request.
	Restored int

	// Staged is the account of the first part of the prompt, if that was computed before the
	// request: the engine counts its tokens as cached.
	Staged *Answer

	// TooLong says that the prompt has no room in the slot: the engine refuses it at once.
	TooLong bool

	t       *Tier
	s       *slot
	tokens  []int32
	rest    []int32
	private bool
	counted int // at most Engine.Generated before the request

	began    time.Time
	held     int // tokens of the prompt that the slot held before the restore
	restored restored
	asked    *inquiry // nil without Options.Recents
}

// Answer is the engine's account of a request, which the end of an answer carries. A slot
// that is full has its context shifted: later tokens move, and their rows with them. The
// numbers show whether a request can have filled its slot.
type Answer struct {
	Cached    int // tokens of the prompt that the slot held before
	Processed int // tokens of the prompt that were computed
	Generated int // tokens of the answer

	Took time.Duration // to compute Processed
}

// seen is the number of tokens of the prompt and the answer.
func (a *Answer) seen() int { return a.Cached + a.Processed + a.Generated }

// Slot is the number of the slot, for the request's id_slot.
func (u *Turn) Slot() int { return u.s.id }

// Request is a request as far as the Tier must know it.
type Request struct {
	Tokens  []int32            // the prompt, up to the first image or sound
	Rest    []int32            // stands for the first image or sound and all behind it; nil without
	Slot    int                // that the request asks for, -1 for any
	Private bool               // rows are neither restored nor stored
	AtOnce  bool               // the prompt is computed in one step; see Turn.Staged
	Cancel  context.CancelFunc // gives the request up
}

// Errors of Begin.
var (
	// ErrClosed reports a request that began after Flush.
	ErrClosed = errors.New("llamatier: the tier is closed")

	// ErrTaken reports that the engine runs a request in the slot that another request would get,
	// that requests of Unknown run, and that the engine has a free slot.
	ErrTaken = errors.New("llamatier: the engine has given the slot to another request")
)

// Begin waits for a slot for a request, chooses it, and restores stored pages into it. The
// caller calls End or Drop. Begin returns ErrClosed, ErrTaken or an error of ctx.
func (t *Tier) Begin(ctx context.Context, r Request) (*Turn, error) {
	if t.table.isClosed() {
		return nil, ErrClosed
	}
	s, err := t.table.take(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("wait for a slot: %w", err)
	}
	s, taken, err := t.settle(ctx, s, r)
	if err = cmp.Or(ctx.Err(), err); err != nil {
		t.table.giveBack(s)
		return nil, err
	}
	u := &Turn{t: t, s: s, tokens: r.Tokens, rest: r.Rest, private: r.Private, began: time.Now()}
	u.TooLong = len(r.Tokens) >= t.opt.Context
	u.asked = t.why.open(r)
	u.counted = t.counter.least()
	t.table.begin(s, r.Cancel)
	if t.obstacles.off.Load() || taken || u.TooLong {
		return u, nil
	}
	counted := t.counter.count(ctx)
	if r.Private {
		u.held = commonPrefix(s.tokens, r.Tokens)
		s.rewound(u.held)
		t.saver.save(ctx, s, true)
	} else {
		var p *plan
		u.held, p, u.restored = t.restorer.restore(ctx, s, r.Tokens)
		u.asked.planned(p, u.held, t.table)
		u.Restored = u.restored.tokens
	}
	u.counted = <-counted
	t.table.breakUnknown(s)
	if r.Rest == nil && !r.Private && !r.AtOnce {
		t.stage(ctx, u)
	}
	return u, nil
}

// settle returns the slot in which a request will run, and reports whether the engine runs another
// one in it, one of Unknown or one whose client is gone. It is another slot than the busy one if the
// engine has a free one. Settle returns ErrTaken if requests of Unknown run, and the engine may choose
// another slot.
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

// End ends a request. answer is nil unless the engine was heard to the end. The slot is saved
// some time later, unless another request takes it before.
func (u *Turn) End(answer *Answer) {
	t, s := u.t, u.s
	p := u.account(t.opt.Rates, answer)
	u.restored.saved = p.Saved
	t.why.record(u.asked, p)
	u.computed(len(u.tokens), answer)
	if t.counter.generating(); answer != nil {
		t.counter.askAhead()
	}
	t.table.end(s, s.describe(answer, u.restored, t.opt.PageTokens))
}

// computed notes that the engine has computed the first tokens of a prompt.
func (u *Turn) computed(tokens int, answer *Answer) {
	if answer != nil && u.rest == nil { // an image is not computed as tokens are
		u.t.opt.Rates.Computed(answer.Processed, float64(answer.Cached)+float64(answer.Processed-1)/2, answer.Took)
	}
	context := u.t.opt.Context
	if u.t.opt.NoShift {
		context = 0
	}
	u.s.compute(computed{tokens: u.tokens[:tokens], rest: u.rest, private: u.private, counted: u.counted, answer: answer}, context)
}

// Drop ends a request that the engine has not got, or has refused because the prompt is TooLong.
// It takes the place of End.
func (u *Turn) Drop() {
	u.t.why.forget(u.asked)
	u.t.table.giveBack(u.s)
}

// saveIdle saves a slot that no request has taken.
func (t *Tier) saveIdle(s *slot) {
	if !t.table.takeUnused(s) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	t.saver.save(ctx, s, false)
	if s.dirty && !t.obstacles.off.Load() { // another save, or a request in the slot, was not over
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
	t.storing.spawn(func() {
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

// Flush gives up the requests that run, refuses those that wait, saves every slot, and returns
// when all pages are stored. No save begins after ctx has ended, but Flush also waits for an
// action that llama-server has begun, at most patience.end: a caller with less time leaves Flush
// behind.
func (t *Tier) Flush(ctx context.Context) {
	t.table.close()
	for _, unheard := range []bool{false, true} { // the engine leaves slots without a client late
		for id := range t.table.slots {
			s, err := t.table.take(ctx, Request{Slot: id})
			if err != nil {
				return // ctx has ended
			}
			if s.unheard() == unheard {
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

// Unknown notes that the engine answers a request in a slot that it chose itself, until the
// caller calls end, which says whether the engine may have computed anything. If so, no slot is
// stored until its rows are known again, so slots are saved first.
// Unknown lets actions on slots end, for a while: one that llama-server holds back for the
// request could in turn hold back the requests behind it.
func (t *Tier) Unknown() (end func(computed bool)) {
	ctx, cancel := context.WithTimeout(context.Background(), t.patience.unknown)
	defer cancel()
	t.saveFree(ctx)
	t.table.beginUnknown(ctx)
	t.counter.generating()
	return func(computed bool) {
		t.counter.generating() // before another request can ask for the count
		t.table.endUnknown(computed)
	}
}

// Slots describes the slots, for people. Pages of a slot in a tier are not counted here.
func (t *Tier) Slots() []telemetry.Slot { return t.table.describe() }

// Off ends storing and restoring, because rows no longer follow from the model alone.
func (t *Tier) Off(cause telemetry.Obstacle, why string) {
	t.obstacles.turnOff(cause, why)
}
