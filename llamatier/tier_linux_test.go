package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

const testPage = 16

// world is a Tier before a fakeEngine, and a store that outlives both.
type world struct {
	t      require.TestingT
	engine *fakeEngine
	tier   *Tier
	store  *diskstore.Store
	root   string // of the store
	hybrid bool   // the model has a state
	lossy  bool   // lossy pages are restored
	still  bool   // the engine shifts no context
	drafts bool   // the engine has a draft model
	files  *slotfile.Files
	stream bool // the files may be streams
	meter  telemetry.Meter
	change func(*Options) // of the next Tier
	rates  *rates.Rates
	told   *unstored.Watch

	available uint64 // bytes of memory
	free      int64  // bytes on the disk
	look      func() // at the disk

	mu     sync.Mutex
	timers []*timer
	last   Served  // the last request of ask
	said   []int32 // its prompt
}

// timer is a timer that a test sets off.
type timer struct {
	f    func()
	mu   sync.Mutex
	done bool
}

func (m *timer) Stop() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	stopped := !m.done
	m.done = true
	return stopped
}

func openStore(t require.TestingT, root string) *diskstore.Store {
	s, err := diskstore.Open(context.Background(), diskstore.Options{
		Fingerprint: pagefile.Key{1}, PageTokens: testPage, Local: diskstore.TierConfig{Root: root, BudgetBytes: 1 << 30},
	})
	require.NoError(t, err)
	return s
}

func newWorld(t testing.TB, slots, context int) *world {
	return (&world{t: t}).start(slots, context)
}

// openStore makes a store, which goes with the test.
func (w *world) openStore() {
	t := w.t.(testing.TB)
	w.root = t.TempDir()
	w.store = openStore(t, w.root)
	t.Cleanup(func() { require.NoError(t, w.store.Close()) })
}

// openFiles makes the engine's folder, which goes with the test.
func (w *world) openFiles() {
	folder, err := slotfile.NewFolder(os.TempDir())
	require.NoError(w.t, err)
	w.t.(interface{ Cleanup(func()) }).Cleanup(func() { require.NoError(w.t, folder.Remove()) })
	w.available, w.free, w.look = 1<<30, 1<<30, func() {}
	w.files = slotfile.New(folder, slotfile.Options{
		Available: func() (uint64, error) { return w.available, nil },
		Free:      func(string) (int64, error) { w.look(); return w.free, nil },
		Log:       slog.New(slog.DiscardHandler),
	})
	if w.stream {
		w.files.Mount()
		w.t.(interface{ Cleanup(func()) }).Cleanup(w.files.Unmount)
	}
}

// start begins with an engine that holds nothing.
func (w *world) start(slots, context int) *world {
	if w.store == nil {
		w.openStore()
	}
	if w.files == nil {
		w.openFiles()
	}
	w.engine = newFake(w.t, slots, context)
	w.engine.dir, w.engine.still, w.engine.drafts = w.files.Dir(), w.still, w.drafts
	if w.hybrid {
		w.engine.shape = hybridShape
	}
	w.rates = rates.New()
	opt := Options{
		Engine: w.engine.engine(), Shape: w.engine.shape, Control: control, Slots: slots, Context: context,
		Files: w.files, PartBytes: 5000, Store: w.store, Fingerprint: pagefile.Key{1}, PageTokens: testPage, Lossy: w.lossy, NoShift: w.still, Search: true, Similarity: w.engine.similarity, Drafts: w.drafts,
		Meter: &w.meter, Recents: why.NewRecents(), Rates: w.rates,
		AfterFunc: func(_ time.Duration, f func()) interface{ Stop() bool } {
			m := &timer{f: f}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.timers = append(w.timers, m)
			return m
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if w.change != nil {
		w.change(&opt)
	}
	w.tier = New(opt)
	w.tier.patience.saving = time.Minute // a disk may be busy
	return w
}

// newHybrid is a world whose model has a state.
func newHybrid(t testing.TB) *world {
	return (&world{t: t, hybrid: true}).start(1, 4000)
}

// killed stores the slots, and begins with an engine that holds nothing.
func (w *world) killed() {
	w.tier.Flush(context.Background())
	w.start(len(w.engine.slots), w.engine.context)
}

// restart begins with an engine that holds nothing, and a Tier with other options.
func (w *world) restart(change func(*Options)) {
	w.change = change
	w.start(len(w.engine.slots), w.engine.context)
}

// disk is the store as the Tier sees it.
func (w *world) disk() *disk { return w.tier.saver.files.disk }

// idle lets time pass: slots that are unused are saved and stored.
func (w *world) idle() {
	w.pass()
	w.tier.storing.Wait()
}

// beside does something in a goroutine, and closes a channel afterwards.
func beside(do func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	return done
}

// unheard sends a prompt whose answer nobody hears to its end.
func (w *world) unheard(tokens []int32, predict int) {
	turn := w.begin(ask(tokens))
	w.engine.slots[turn.Slot()].complete(w.engine, context.Background(), tokens, predict)
	turn.End(nil)
}

// pass lets time pass, and does not wait until saved pages are stored.
func (w *world) pass() {
	w.mu.Lock()
	timers := w.timers
	w.timers = nil
	w.mu.Unlock()
	for _, m := range timers {
		if m.Stop() {
			m.f()
		}
	}
}

// ask sends a prompt and returns the tokens that were restored for it.
func (w *world) ask(r Request, predict int) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.Cancel = cancel
	turn, err := w.tier.Begin(ctx, r)
	if errors.Is(err, ErrTaken) {
		w.passes(r, predict)
		return 0
	}
	require.NoError(w.t, err)
	turn.End(w.engine.slots[turn.Slot()].complete(w.engine, ctx, r.Tokens, predict))
	w.accounted()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.said = turn.Served(), r.Tokens
	return turn.restored.tokens
}

// begin begins a prompt of a client that waits.
func (w *world) begin(r Request) *Turn {
	r.Cancel = func() {}
	turn, err := w.tier.Begin(context.Background(), r)
	require.NoError(w.t, err)
	return turn
}

// askAndIdle sends a prompt, and has its slot stored.
func (w *world) askAndIdle(r Request, predict int) {
	w.ask(r, predict)
	w.idle()
}

// found returns the pages of a prompt that are stored.
func (w *world) found(tokens []int32) []diskstore.Ref {
	return w.store.Find(context.Background(), diskstore.Prompt{Tokens: tokens}).Exact
}

// pageFiles returns the paths of the stored pages, of which there are some.
func (w *world) pageFiles() (paths []string) {
	require.NoError(w.t, filepath.WalkDir(w.root, func(path string, _ os.DirEntry, err error) error {
		if filepath.Ext(path) == ".kvp" {
			paths = append(paths, path)
		}
		return err
	}))
	require.NotEmpty(w.t, paths)
	return paths
}

// slotFiles returns the files that llama-server reads and writes.
func (w *world) slotFiles() []os.DirEntry {
	files, err := os.ReadDir(w.files.Dir())
	require.NoError(w.t, err)
	return files
}

// accounted requires that the tokens of each prompt came from somewhere.
func (w *world) accounted() {
	_, prompts := w.meter.Read()
	for _, p := range prompts {
		require.Equal(w.t, p.Tokens, p.Slot+p.RAM+p.Local+p.Remote+p.Shifted+p.Computed, "%+v", p)
		require.GreaterOrEqual(w.t, min(p.Slot, p.RAM, p.Local, p.Remote, p.Computed), 0, "%+v", p)
	}
}

// control reports whether a token is a control token.
func control(token int32) bool { return token >= 1010 }

// opening opens an answer, as templates of chats do.
var opening = []int32{1010, 7, 8}

// prompt is a prompt of n tokens of a conversation.
func prompt(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((seed*7919 + i*31) % 1009)
	}
	return tokens
}

func ask(tokens []int32) Request { return Request{Tokens: tokens, Slot: -1} }

func private(tokens []int32) Request { return Request{Tokens: tokens, Slot: -1, Private: true} }

// TestAConversationComesBack after the engine was killed, another conversation in its slot
// before that.
func TestAConversationComesBack(t *testing.T) {
	w := newWorld(t, 1, 1000)
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(2, 100)), 5), "the first conversation is saved before its slot is taken")
	w.killed()
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 199+1, w.engine.cached)
	require.Equal(t, 100, w.ask(ask(prompt(2, 100)), 5))
	require.Equal(t, 300, w.ask(ask(prompt(1, 300)), 5), "the slot was saved before the second conversation took it")
}

// TestASlotThatTheEngineHasEmptied, because another one needed the room, gets its pages back.
func TestASlotThatTheEngineHasEmptied(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.askAndIdle(ask(prompt(1, 200)), 5)
	*w.engine.slots[0], *w.engine.slots[1] = fakeSlot{}, fakeSlot{}
	require.Equal(t, 200/testPage*testPage, w.ask(ask(prompt(1, 300)), 5))
	require.Zero(t, w.ask(ask(prompt(1, 310)), 5), "the slot holds it")
}

// TestASlotThatHoldsThePrompt: the engine is asked nothing before the request, unless there is a
// reason for doubt.
func TestASlotThatHoldsThePrompt(t *testing.T) {
	for name, c := range map[string]struct {
		after func(w *world) // an answer was heard
		asked map[string]int
	}{
		"at once":                {func(*world) {}, map[string]int{}},
		"it may have slept":      {func(w *world) { w.tier.table.slots[0].used = time.Now().Add(-time.Minute) }, map[string]int{"/slots": 1}},
		"an unknown request":     {func(w *world) { w.tier.Unknown()(true) }, map[string]int{"/slots": 1, "/slots/0": 1, "/metrics": 1}},
		"an answer is not heard": {func(w *world) { w.unheard(prompt(1, 205), 5) }, map[string]int{"/slots": 2, "/metrics": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1000)
			w.ask(ask(prompt(1, 200)), 5)
			w.tier.storing.Wait()
			c.after(w)
			w.tier.storing.Wait()
			w.engine.requests()
			turn := w.begin(ask(prompt(1, 210)))
			require.Equal(t, c.asked, w.engine.requests())
			turn.Drop()
			w.tier.Flush(t.Context())
		})
	}
}

// tailsOf reports of each page whether it is a tail.
func tailsOf(refs []diskstore.Ref) (tails []bool) {
	for _, ref := range refs {
		tails = append(tails, ref.Tail)
	}
	return tails
}

// TestAnotherPromptThanWasSaid is noticed when its slot is saved, although it has as many tokens.
func TestAnotherPromptThanWasSaid(t *testing.T) {
	mistakes := 0
	w := (&world{t: t, change: func(o *Options) { o.Mistaken = func() { mistakes++ } }}).start(1, 1000)
	for i, changed := range []int{-1, 150} {
		text := prompt(i, 200)
		said := slices.Clone(text)
		if changed >= 0 {
			said[changed]++
		}
		turn := w.begin(ask(said))
		answer := w.engine.slots[0].complete(w.engine, t.Context(), text, 5)
		require.True(t, turn.Reads(answer))
		turn.End(answer)
		w.idle()
		require.Equal(t, i, mistakes)
		require.Equal(t, i == 0, len(w.found(text)) > 0, "it is stored")
	}
}

// TestAShiftBehindALongerPrompt than was said, whose client is gone: the shift keeps the prompt, and its first
// tokens are those that were said.
func TestAShiftBehindALongerPrompt(t *testing.T) {
	for missing := range 10 {
		for answer := 95; answer < 115; answer++ {
			w := newWorld(t, 1, 200)
			w.engine.keep = 100
			turn := w.begin(ask(prompt(1, 100-missing)))
			w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), answer)
			held := slices.Clone(w.engine.slots[0].tokens)
			turn.End(nil)
			w.killed()
			w.ask(ask(append(held[:min(len(held), 190)], 5)), 1) // the engine looks at rows that are restored
			w.tier.Flush(t.Context())
		}
	}
}

// TestASlotIsSavedWhenIdle, and not again before the next request.
func TestASlotIsSavedWhenIdle(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.askAndIdle(ask(prompt(1, 100)), 20)
	require.NotContains(t, tailsOf(w.found(prompt(1, 100))), true, "no tails")
	require.Empty(t, w.timers)

	w.ask(ask(prompt(1, 100)), 20)
	require.Len(t, w.timers, 1)
	begun, err := w.tier.Begin(t.Context(), ask(prompt(1, 100)))
	require.NoError(t, err)
	w.idle()
	require.True(t, begun.s.dirty, "a slot in use is not saved")
	begun.End(nil)
}

// TestFailuresMeanComputing: an engine that refuses an action answers every prompt.
func TestFailuresMeanComputing(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 2)
	w.engine.refuseNext("/slots/0", 1)
	w.idle()
	require.Empty(t, w.found(prompt(1, 200)))
	w.askAndIdle(ask(prompt(1, 210)), 2)
	require.NotEmpty(t, w.found(prompt(1, 210)))

	w.start(1, 1000)
	w.engine.refuseNext("/slots/0", 1)
	require.Zero(t, w.ask(ask(prompt(1, 210)), 2))
	require.Equal(t, 210, w.engine.computed)
	w.engine.refuseNext("/slots", 1)
	w.idle()
	require.Positive(t, w.ask(ask(prompt(1, 400)), 2)+1)
}

// TestMemoryIsBounded: a slot whose file would take more than half of the memory is neither
// saved nor restored if the disk is full.
func TestMemoryIsBounded(t *testing.T) {
	w := newWorld(t, 1, 1000)
	need := uint64(fakeShape.RowBytes(102, 0))
	w.available, w.free = 2*need-2, 0
	w.askAndIdle(ask(prompt(1, 100)), 3)
	require.Empty(t, w.found(prompt(1, 100)))
	w.available = 2 * need
	w.askAndIdle(ask(prompt(1, 100)), 3)
	require.NotEmpty(t, w.found(prompt(1, 100)))

	w.start(1, 1000)
	w.available = 100
	require.Zero(t, w.ask(ask(prompt(1, 100)), 3))
	require.Equal(t, 100, w.engine.computed)
}

// TestCheckpointsTakeRoom: as many as the last file had are expected in the next one.
func TestCheckpointsTakeRoom(t *testing.T) {
	w := (&world{t: t, hybrid: true}).start(1, 1000)
	w.askAndIdle(ask(prompt(1, 100)), 3)
	goesOn := func(n int) []int32 {
		held := w.engine.slots[0].tokens
		return slices.Concat(held, prompt(2, n-len(held)))
	}
	rows := uint64(hybridShape.RowBytes(201, 0))
	w.available, w.free = 2*rows, 0
	w.ask(ask(goesOn(200)), 2)
	w.tier.Flush(t.Context())
	require.LessOrEqual(t, endOf(w.found(w.engine.slots[0].tokens)), 102)
	w.tier.table.closed = false
	w.available += 2 * uint64(len(checkpoints(201)))
	w.ask(ask(w.engine.slots[0].tokens), 2)
	w.tier.Flush(t.Context())
	require.Greater(t, endOf(w.found(w.engine.slots[0].tokens)), 190)
}

// TestASequenceLargerThanMemory goes through a file on the disk, and nothing is left there.
func TestASequenceLargerThanMemory(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.available = 100
	w.ask(ask(prompt(1, 100)), 3)
	w.tier.Flush(t.Context())
	require.NotEmpty(t, w.found(prompt(1, 100)))

	w.start(1, 1000)
	require.Equal(t, 100, w.ask(ask(prompt(1, 120)), 3))
	require.Equal(t, 20, w.engine.computed)
	w.tier.Flush(t.Context())
	require.Empty(t, w.slotFiles())
}

// TestRequestsThatWaitAreRefusedAtTheEnd, so that the flush gets the slots.
func TestRequestsThatWaitAreRefusedAtTheEnd(t *testing.T) {
	w := newWorld(t, 1, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	running, err := w.tier.Begin(ctx, Request{Tokens: prompt(1, 100), Slot: -1, Cancel: cancel})
	require.NoError(t, err)
	refused := make(chan error, 1)
	go func() {
		_, err := w.tier.Begin(t.Context(), ask(prompt(2, 100)))
		refused <- err
	}()
	for waits := false; !waits; runtime.Gosched() {
		w.tier.table.mu.Lock()
		waits = len(w.tier.table.waiting) == 1
		w.tier.table.mu.Unlock()
	}
	flushed := beside(func() { w.tier.Flush(t.Context()) })
	require.ErrorIs(t, <-refused, ErrClosed)
	<-ctx.Done()
	running.End(w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 3))
	<-flushed
	require.NotEmpty(t, w.found(prompt(1, 100)))
	_, err = w.tier.Begin(t.Context(), ask(prompt(3, 100)))
	require.ErrorIs(t, err, ErrClosed)
}

// TestARefusedPrompt is longer than the context. Nothing is read or computed for it, and the slot
// stays as it was.
func TestARefusedPrompt(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		w := (&world{t: t, hybrid: hybrid}).start(1, 400)
		w.ask(ask(prompt(1, 300)), 5)
		w.killed()
		w.ask(ask(prompt(2, 100)), 5)
		long := slices.Concat(prompt(1, 400), opening)
		turn := w.begin(ask(long))
		require.Zero(t, turn.restored.tokens)
		require.Nil(t, turn.Staged)
		require.Nil(t, w.engine.slots[0].complete(w.engine, t.Context(), long, 5))
		turn.Drop()
		require.Equal(t, 100, w.engine.computed)
		w.idle()
		if !hybrid {
			require.NotEmpty(t, w.found(prompt(2, 100)))
		}
		w.ask(ask(prompt(2, 120)), 5)
		w.tier.Flush(t.Context())
		require.NotEmpty(t, w.found(prompt(2, 120)))
	}
}

// TestAClientThatIsGoneBeforeItsRequestIsSent leaves the slot as it was.
func TestAClientThatIsGoneBeforeItsRequestIsSent(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 100)), 5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // the context and the slot come together
		_, err := w.tier.Begin(ctx, Request{Tokens: prompt(2, 100), Slot: -1, Cancel: cancel})
		require.ErrorIs(t, err, context.Canceled)
	}
	end := w.tier.Unknown()
	_, err := w.tier.Begin(ctx, Request{Tokens: prompt(2, 100), Slot: -1, Cancel: cancel})
	require.ErrorIs(t, err, context.Canceled)
	end(true)
	w.ask(ask(prompt(1, 110)), 5)
	_, err = w.tier.Begin(ctx, Request{Tokens: prompt(2, 100), Slot: -1, Cancel: cancel})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEmpty(t, w.timers)
	w.timers = w.timers[len(w.timers)-1:]
	require.False(t, w.timers[0].done, "the slot is saved some time later")
}

// TestTailsOfASavedSlot: one, also where the answer ends in a later page than its prompt. The
// prompt's end is found at the beginning of a page or of the tail.
func TestTailsOfASavedSlot(t *testing.T) {
	for _, answer := range []int{5, 20} {
		w := newWorld(t, 1, 1000)
		w.ask(ask(prompt(1, 200)), answer)
		w.tier.Flush(t.Context())
		_, err := w.store.Survey(t.Context()) // the count has ended
		require.NoError(t, err)
		require.Equal(t, 1, w.store.Stats().Local.Tails, "an answer of %d tokens", answer)
		refs := w.found(prompt(1, 200))
		last := refs[len(refs)-1]
		require.Equal(t, 200, int(last.Start)+last.Tokens)
	}
}

// TestSlotsOfPromptsWithImages: such a prompt gets the slot that holds the same image, and an
// image behind a few common tokens takes no slot from a long conversation.
func TestSlotsOfPromptsWithImages(t *testing.T) {
	w := newWorld(t, 3, 1000)
	image := func(seed, n int) Request {
		return Request{Tokens: prompt(1, 10), Rest: prompt(seed, n), Slot: -1}
	}
	slot := func(r Request) int {
		turn := w.begin(r)
		turn.End(&Answer{Processed: len(r.Tokens) + len(r.Rest), Generated: 5})
		return turn.Slot()
	}
	require.Equal(t, 0, slot(ask(prompt(1, 200))))
	require.Equal(t, 1, slot(image(2, 300)))
	require.Equal(t, 2, slot(image(3, 300)))
	require.Equal(t, 1, slot(image(2, 350)))
	require.Equal(t, 2, slot(image(3, 350)))
	require.Equal(t, 0, slot(ask(prompt(1, 250))))
	require.Equal(t, 1, slot(image(4, 300)), "unused for longest")
}

// TestAnAnswerBehindAnImage: its time is not that of tokens. Without its end it is not known how many
// tokens the slot has seen.
func TestAnAnswerBehindAnImage(t *testing.T) {
	for _, heard := range []bool{true, false} {
		w := newWorld(t, 1, 1000)
		w.unheard(prompt(1, 100), 5)
		before := w.rates.Computing(0, 100)
		turn := w.begin(Request{Tokens: prompt(1, 100), Rest: prompt(2, 300), Slot: -1})
		answer := w.engine.slots[0].complete(w.engine, t.Context(), slices.Concat(prompt(1, 100), prompt(2, 300)), 5)
		if answer.Took = time.Hour; !heard {
			answer = nil
		}
		turn.End(answer)
		require.Equal(t, before, w.rates.Computing(0, 100))
		w.idle()
		require.Equal(t, heard, len(w.found(prompt(1, 100))) > 0)
	}
}

// TestPlansEndBeforeImages: the engine has no use for a part of an image, and fails where it has to compute
// the last token of one alone.
func TestPlansEndBeforeImages(t *testing.T) {
	w := newWorld(t, 1, 1000)
	tokens := prompt(1, 600)
	w.ask(ask(tokens), 5)
	w.idle()
	plan := func(media ...llamastate.Medium) int {
		return len(w.tier.restorer.planner.plan(t.Context(), Tenant{}, tokens, media, 0, 0).tokens)
	}
	whole := plan()
	require.Greater(t, whole, 500)
	require.Equal(t, whole, plan(llamastate.Medium{Start: 100, Tokens: 30}))
	require.Equal(t, whole-10, plan(llamastate.Medium{Start: 100, Tokens: 30}, llamastate.Medium{Start: whole - 10, Tokens: 11}))
	require.Equal(t, 580, plan(llamastate.Medium{Start: 580, Tokens: 20}))
	require.Equal(t, 560, plan(llamastate.Medium{Start: 540, Tokens: 20}, llamastate.Medium{Start: 560, Tokens: 40}))
}
