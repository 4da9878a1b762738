package llamatier

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const testPage = 16

// world is a Tier before a fakeEngine, and a store that outlives both.
type world struct {
	t      require.TestingT
	engine *fakeEngine
	tier   *Tier
	store  *diskstore.Store
	hybrid bool // the model has a state

	mu     sync.Mutex
	timers []*timer
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

func openStore(t testing.TB) *diskstore.Store {
	root := filepath.Join(t.(interface{ TempDir() string }).TempDir(), "root")
	require.NoError(t, os.Mkdir(root, 0o700))
	s, err := diskstore.Open(context.Background(), diskstore.Options{
		Fingerprint: pagefile.Key{1}, PageTokens: testPage, Local: diskstore.TierConfig{Root: root, BudgetBytes: 1 << 30},
	})
	require.NoError(t, err)
	return s
}

func newWorld(t require.TestingT, store *diskstore.Store, slots, context int) *world {
	w := &world{t: t, store: store}
	w.start(slots, context)
	return w
}

// start begins with an engine that holds nothing.
func (w *world) start(slots, context int) {
	w.engine = newFake(w.t, slots, context)
	if w.hybrid {
		w.engine.shape = hybridShape
	}
	w.tier = New(Options{
		Engine: w.engine.engine(), Shape: w.engine.shape, Control: control, Slots: slots, Context: context,
		Store: w.store, Fingerprint: pagefile.Key{1}, PageTokens: testPage,
		AfterFunc: func(_ time.Duration, f func()) interface{ Stop() bool } {
			m := &timer{f: f}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.timers = append(w.timers, m)
			return m
		},
		Log: slog.New(slog.DiscardHandler),
	})
}

// idle lets time pass: slots that are unused are saved and stored.
func (w *world) idle() {
	w.pass()
	w.tier.storing.Wait()
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
	require.NoError(w.t, err)
	turn.End(w.engine.slots[turn.Slot()].complete(w.engine, ctx, r.Tokens, predict))
	return turn.Restored
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

// TestAConversationComesBack after the engine was killed, another conversation in its slot
// before that.
func TestAConversationComesBack(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(2, 100)), 5), "the first conversation is saved before its slot is taken")
	w.tier.Flush(t.Context())

	w.start(1, 1000)
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 199+1, w.engine.cached)
	require.Equal(t, 100, w.ask(ask(prompt(2, 100)), 5))
	require.Equal(t, 300, w.ask(ask(prompt(1, 300)), 5), "the slot was saved before the second conversation took it")
}

// TestASlotThatTheEngineHasEmptied, because another one needed the room, gets its pages back.
func TestASlotThatTheEngineHasEmptied(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 2, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.idle()
	*w.engine.slots[0], *w.engine.slots[1] = fakeSlot{}, fakeSlot{}
	require.Equal(t, 200/testPage*testPage, w.ask(ask(prompt(1, 300)), 5))
	require.Zero(t, w.ask(ask(prompt(1, 310)), 5), "the slot holds it")
}

// TestARequestOfWhichNothingIsKnown: the conversation that it takes the slot from comes back.
func TestARequestOfWhichNothingIsKnown(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 2, 1000)
	w.calm()
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(2, 100)), 5))
	end := w.tier.Unknown()
	for _, s := range w.engine.slots {
		s.complete(w.engine, t.Context(), prompt(3, 50), 5)
	}
	end()
	w.tier.Flush(t.Context())

	w.start(2, 1000)
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 100, w.ask(ask(prompt(2, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(3, 90)), 5))
}

// TestAnIdleSlotBeforeAnUnknownRequest was saved without its tail, and is saved again.
func TestAnIdleSlotBeforeAnUnknownRequest(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.calm()
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	w.idle()
	w.tier.Unknown()()
	w.tier.Flush(t.Context())
	w.start(1, 1000)
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
}

// TestAHungEngineBeforeAnUnknownRequest holds the request up for a while, and not until the
// engine is given up.
func TestAHungEngineBeforeAnUnknownRequest(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 2, 1000)
	w.tier.patience.unknown = 20 * time.Millisecond
	w.ask(ask(prompt(1, 200)), 5)
	w.ask(ask(prompt(2, 200)), 5)
	hang := make(chan struct{})
	w.engine.enter["/slots/0"] = func() { <-hang }
	w.tier.Unknown()()
	close(hang)
	w.tier.Flush(t.Context())
	for seed := range 3 {
		require.Empty(t, store.Chain(t.Context(), prompt(seed, 200), nil), "the request may have run in any slot")
	}
}

// TestNoUselessSavesBeforeAnUnknownRequest: a save that would store nothing, or must wait for
// the engine to leave a request, does not hold up another request.
func TestNoUselessSavesBeforeAnUnknownRequest(t *testing.T) {
	for name, last := range map[string]func(w *world){
		"another one":  func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.Unknown()() },
		"unknown rows": func(w *world) { w.tier.Unknown()(); w.ask(ask(prompt(1, 200)), 5); w.ask(ask(prompt(1, 220)), 5) },
		"private":      func(w *world) { w.ask(Request{Tokens: prompt(1, 200), Slot: -1, Private: true}, 5) },
		"unheard":      func(w *world) { begin(w.t.(*testing.T), w, prompt(1, 200)).End(nil) },
		"off":          func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.Off("a test") },
		"closed":       func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.closed = true },
	} {
		store := openStore(t)
		w := newWorld(t, store, 1, 1000)
		last(w)
		w.engine.enter["/slots"] = func() { t.Error(name) }
		w.engine.enter["/slots/0"] = func() { t.Error(name) }
		w.tier.Unknown()()
		w.tier.storing.Wait()
		require.NoError(t, store.Close())
	}
}

// TestSlotsOfPromptsWithImages: such a prompt gets the slot that holds the same image, and an
// image behind a few common tokens takes no slot from a long conversation.
func TestSlotsOfPromptsWithImages(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 3, 1000)
	image := func(seed, n int) Request {
		return Request{Tokens: prompt(1, 10), Rest: prompt(seed, n), Slot: -1}
	}
	slot := func(r Request) int {
		r.Cancel = func() {}
		turn, err := w.tier.Begin(t.Context(), r)
		require.NoError(t, err)
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

// TestAnAnswerBehindAnImage: its time is not that of tokens, and without its end it is not known
// how many tokens the slot has seen.
func TestAnAnswerBehindAnImage(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	image := Request{Tokens: prompt(1, 100), Rest: prompt(2, 300), Slot: -1, Cancel: func() {}}
	text := begin(t, w, prompt(1, 100))
	_ = w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 5)
	text.End(nil)
	before := w.tier.opt.Rates.Computing(0, 100)
	turn, err := w.tier.Begin(t.Context(), image)
	require.NoError(t, err)
	answer := w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 5)
	answer.Processed, answer.Took = 300, time.Hour
	turn.End(answer)
	require.Equal(t, before, w.tier.opt.Rates.Computing(0, 100))
	w.idle()
	require.Empty(t, store.Chain(t.Context(), prompt(1, 100), nil))
}

// TestASlotIsSavedWhenIdle, and not again before the next request.
func TestASlotIsSavedWhenIdle(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 2, 1000)
	w.ask(ask(prompt(1, 100)), 20)
	w.idle()
	require.Len(t, store.Chain(t.Context(), prompt(1, 100), nil), 100/testPage, "no tails")
	require.Empty(t, w.timers)

	w.ask(ask(prompt(1, 100)), 20)
	require.Len(t, w.timers, 1)
	begun, err := w.tier.Begin(t.Context(), ask(prompt(1, 100)))
	require.NoError(t, err)
	w.idle()
	require.True(t, begun.s.dirty, "a slot in use is not saved")
	begun.End(nil)
}

// TestAShiftedSlotIsNotStored, nor anything that follows in the slot, until the slot was empty.
func TestAShiftedSlotIsNotStored(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 128)
	w.ask(ask(prompt(1, 100)), 60)
	w.idle()
	require.Empty(t, store.Chain(t.Context(), prompt(1, 100), nil))

	// The engine reuses rows of the shifted context.
	held := slices.Clone(w.engine.slots[0].tokens)
	w.ask(ask(held[:80]), 2)
	w.idle()
	require.Empty(t, store.Chain(t.Context(), held[:80], nil))

	w.ask(ask(prompt(2, 90)), 2)
	w.idle()
	require.NotEmpty(t, store.Chain(t.Context(), prompt(2, 90), nil))
}

// TestPrivateRequests leave nothing in the store, and the request after them nothing of theirs.
func TestPrivateRequests(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	private := ask(prompt(1, 100))
	private.Private = true
	w.ask(private, 2)
	w.idle()
	w.ask(ask(prompt(1, 150)), 2)
	w.idle()
	require.Empty(t, store.Chain(t.Context(), prompt(1, 150), nil))
	w.ask(ask(prompt(2, 100)), 2)
	w.idle()
	require.NotEmpty(t, store.Chain(t.Context(), prompt(2, 100), nil))
}

// TestFailuresMeanComputing: an engine that refuses an action answers every prompt.
func TestFailuresMeanComputing(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.ask(ask(prompt(1, 200)), 2)
	w.engine.refuse["/slots/0"] = 1
	w.idle()
	require.Empty(t, store.Chain(t.Context(), prompt(1, 200), nil))
	w.ask(ask(prompt(1, 210)), 2)
	w.idle()
	require.NotEmpty(t, store.Chain(t.Context(), prompt(1, 210), nil))

	w.start(1, 1000)
	w.engine.refuse["/slots/0"] = 1
	require.Zero(t, w.ask(ask(prompt(1, 210)), 2))
	require.Equal(t, 210, w.engine.computed)
	w.engine.refuse["/slots"] = 1
	w.idle()
	require.Positive(t, w.ask(ask(prompt(1, 400)), 2)+1)
}

// TestRandomUsers: conversations that branch, requests that are given up, slots that shift,
// failures, restarts. The engine requires that every row which it is given is right.
func TestRandomUsers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "kvtier-users-")
		require.NoError(rt, err)
		defer os.RemoveAll(dir)
		store, err := diskstore.Open(context.Background(), diskstore.Options{
			Fingerprint: pagefile.Key{1}, PageTokens: testPage, Local: diskstore.TierConfig{Root: dir, BudgetBytes: 1 << 30},
		})
		require.NoError(rt, err)
		defer store.Close()
		slots := rapid.IntRange(1, 3).Draw(rt, "slots")
		w := &world{t: rt, store: store, hybrid: rapid.Bool().Draw(rt, "hybrid")}
		w.start(slots, 256)
		var texts [][]int32
		for range rapid.IntRange(3, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom(strings.Fields("ask ask ask ask giveup idle idle private unknown refuse restart together")).Draw(rt, "step") {
			case "ask":
				w.ask(ask(draw(rt, &texts)), rapid.IntRange(0, 200).Draw(rt, "predict"))
			case "giveup":
				w.giveUp(rt, draw(rt, &texts))
			case "private":
				r := ask(draw(rt, &texts))
				r.Private = true
				w.ask(r, 3)
			case "unknown":
				tokens := draw(rt, &texts)
				s := w.engine.slots[rapid.IntRange(0, slots-1).Draw(rt, "slot")]
				predict := rapid.IntRange(0, 300).Draw(rt, "predict")
				end := w.tier.Unknown()
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer end()
					s.complete(w.engine, context.Background(), tokens, predict)
				}()
				w.idle()
				<-done
			case "refuse":
				w.engine.refuse[rapid.SampledFrom([]string{"/slots", "/slots/0"}).Draw(rt, "path")] = 1
			case "idle":
				w.idle()
			case "restart":
				w.tier.Flush(context.Background())
				w.start(slots, 256)
			case "together":
				var all sync.WaitGroup
				for range 4 {
					tokens := draw(rt, &texts)
					all.Add(1)
					go func() {
						defer all.Done()
						w.ask(ask(tokens), 3)
					}()
				}
				all.Wait()
			}
		}
		w.tier.Flush(context.Background())
	})
}

// draw returns a prompt: a new one, or one that shares a beginning with an earlier one.
func draw(rt *rapid.T, texts *[][]int32) []int32 {
	tokens := prompt(rapid.IntRange(1, 50).Draw(rt, "seed"), rapid.IntRange(1, 200).Draw(rt, "tokens"))
	if len(*texts) > 0 && rapid.Bool().Draw(rt, "branch") {
		old := rapid.SampledFrom(*texts).Draw(rt, "of")
		n := rapid.IntRange(0, len(old)).Draw(rt, "from")
		tokens = slices.Concat(old[:n], tokens)
		tokens = tokens[:min(len(tokens), 200)]
	}
	*texts = append(*texts, tokens)
	if rapid.Bool().Draw(rt, "opening") {
		tokens = append(slices.Clone(tokens), opening...)
	}
	return tokens
}

// giveUp sends a prompt whose client goes away; the engine goes on for a while.
func (w *world) giveUp(rt *rapid.T, tokens []int32) {
	ctx, cancel := context.WithCancel(context.Background())
	turn, err := w.tier.Begin(ctx, Request{Tokens: tokens, Slot: -1, Cancel: cancel})
	require.NoError(rt, err)
	w.engine.late = rapid.IntRange(0, 100).Draw(rt, "late")
	cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.engine.slots[turn.Slot()].complete(w.engine, ctx, tokens, 1000)
	}()
	turn.End(nil)
	w.idle()
	<-done
}

// TestAnAnswerGivenUp: without the end of an answer, the tokens that the engine has counted
// show whether the slot can have been shifted.
func TestAnAnswerGivenUp(t *testing.T) {
	for _, c := range []struct {
		late, before int
		stored       bool
	}{
		{10, 0, true}, {500, 0, false}, {500, 999_999, false}, {500, 2_000_004, false}, {500, 98_765_432, false}, {10, 1_234_564, true},
	} {
		late, stored := c.late, c.stored
		store := openStore(t)
		w := newWorld(t, store, 1, 256)
		w.engine.generated = c.before
		ctx, cancel := context.WithCancel(t.Context())
		turn, err := w.tier.Begin(ctx, Request{Tokens: prompt(1, 100), Slot: -1, Cancel: cancel})
		require.NoError(t, err)
		w.engine.late = late
		cancel()
		require.Nil(t, w.engine.slots[0].complete(w.engine, ctx, prompt(1, 100), 1000))
		turn.End(nil)
		w.idle()
		require.Equal(t, stored, len(store.Chain(t.Context(), prompt(1, 100), nil)) > 0, "%+v", c)
		require.NoError(t, store.Close())
	}
}

// TestMemoryIsBounded: a slot whose file would take more than half of the memory is neither
// saved nor restored.
func TestMemoryIsBounded(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	need := uint64(fakeShape.RowBytes(102, 0))
	available := 2*need - 2
	w.tier.opt.Available = func() (uint64, error) { return available, nil }
	w.ask(ask(prompt(1, 100)), 3)
	w.idle()
	require.Empty(t, store.Chain(t.Context(), prompt(1, 100), nil))
	available = 2 * need
	w.ask(ask(prompt(1, 100)), 3)
	w.idle()
	require.NotEmpty(t, store.Chain(t.Context(), prompt(1, 100), nil))

	w.start(1, 1000)
	w.tier.opt.Available = func() (uint64, error) { return 100, nil }
	require.Zero(t, w.ask(ask(prompt(1, 100)), 3))
	require.Equal(t, 100, w.engine.computed)
}

// TestRequestsThatWaitAreRefusedAtTheEnd, so that the flush gets the slots.
func TestRequestsThatWaitAreRefusedAtTheEnd(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	running, err := w.tier.Begin(ctx, Request{Tokens: prompt(1, 100), Slot: -1, Cancel: cancel})
	require.NoError(t, err)
	refused := make(chan error, 1)
	go func() {
		_, err := w.tier.Begin(t.Context(), ask(prompt(2, 100)))
		refused <- err
	}()
	for waits := false; !waits; runtime.Gosched() {
		w.tier.mu.Lock()
		waits = len(w.tier.waiting) == 1
		w.tier.mu.Unlock()
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		w.tier.Flush(t.Context())
	}()
	require.ErrorIs(t, <-refused, ErrClosed)
	<-ctx.Done()
	running.End(w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 3))
	<-flushed
	require.NotEmpty(t, store.Chain(t.Context(), prompt(1, 100), nil))
	_, err = w.tier.Begin(t.Context(), ask(prompt(3, 100)))
	require.ErrorIs(t, err, ErrClosed)
}

// TestARefusedPrompt is longer than the context. Nothing is read or computed for it, and the slot
// stays as it was.
func TestARefusedPrompt(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		store := openStore(t)
		w := &world{t: t, store: store, hybrid: hybrid}
		w.start(1, 400)
		w.ask(ask(prompt(1, 300)), 5)
		w.tier.Flush(t.Context())

		w.start(1, 400)
		w.ask(ask(prompt(2, 100)), 5)
		long := slices.Concat(prompt(1, 400), opening)
		turn := begin(t, w, long)
		require.Zero(t, turn.Restored)
		require.Nil(t, turn.Staged)
		require.Nil(t, w.engine.slots[0].complete(w.engine, t.Context(), long, 5))
		turn.Drop()
		require.Equal(t, 100, w.engine.computed)
		w.idle()
		if !hybrid {
			require.NotEmpty(t, store.Chain(t.Context(), prompt(2, 100), nil))
		}
		w.ask(ask(prompt(2, 120)), 5)
		w.tier.Flush(t.Context())
		require.NotEmpty(t, store.Chain(t.Context(), prompt(2, 120), nil))
		require.NoError(t, store.Close())
	}
}

// TestAClientThatIsGoneBeforeItsRequestIsSent leaves the slot as it was.
func TestAClientThatIsGoneBeforeItsRequestIsSent(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
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
	end()
	w.ask(ask(prompt(1, 110)), 5)
	_, err = w.tier.Begin(ctx, Request{Tokens: prompt(2, 100), Slot: -1, Cancel: cancel})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEmpty(t, w.timers)
	w.timers = w.timers[len(w.timers)-1:]
	require.False(t, w.timers[0].done, "the slot is saved some time later")
}

// TestAShiftBetweenTwoSavesIsNotForgotten: the request after it extends the prompt before the
// slot is saved, and reuses shifted rows.
func TestAShiftBetweenTwoSavesIsNotForgotten(t *testing.T) {
	for _, heard := range []bool{true, false} {
		store := openStore(t)
		w := newWorld(t, store, 1, 128)
		turn, err := w.tier.Begin(t.Context(), Request{Tokens: prompt(1, 100), Slot: -1, Cancel: func() {}})
		require.NoError(t, err)
		a := w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 60)
		if !heard {
			a = nil
		}
		turn.End(a)
		held := slices.Clone(w.engine.slots[0].tokens)
		w.ask(ask(held[:80]), 2)
		w.idle()
		require.Empty(t, store.Chain(t.Context(), held[:80], nil))
		require.NoError(t, store.Close())
	}
}

// TestACancelledAnswerThatGoesOn is stored: both answers together cannot have filled the slot.
func TestACancelledAnswerThatGoesOn(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	turn, err := w.tier.Begin(t.Context(), Request{Tokens: prompt(1, 100), Slot: -1, Cancel: func() {}})
	require.NoError(t, err)
	_ = w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 60)
	turn.End(nil)
	w.ask(ask(prompt(1, 150)), 2)
	w.idle()
	require.NotEmpty(t, store.Chain(t.Context(), prompt(1, 150), nil))
}

// TestOff: nothing is stored or restored after the engine's adapters changed.
func TestOff(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.tier.Off("a test")
	w.ask(ask(prompt(1, 100)), 3)
	w.idle()
	w.tier.Flush(t.Context())
	require.Empty(t, store.Chain(t.Context(), prompt(1, 100), nil))
}

// TestTailsOfASavedSlot: one for an answer that ends in the page in which its prompt ends.
func TestTailsOfASavedSlot(t *testing.T) {
	for answer, tails := range map[int]int{5: 1, 20: 2} {
		store := openStore(t)
		w := newWorld(t, store, 1, 1000)
		w.ask(ask(prompt(1, 200)), answer)
		w.tier.Flush(t.Context())
		usage, err := store.Scan(t.Context())
		require.NoError(t, err)
		require.Equal(t, tails, usage.Local.Tails, "an answer of %d tokens", answer)
		require.NoError(t, store.Close())
	}
}
