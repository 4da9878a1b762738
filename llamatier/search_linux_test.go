package llamatier

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func loose(tokens []int32) Request {
	return Request{Tokens: tokens, Slot: -1, Loose: true, Cancel: func() {}}
}

// float sends a prompt for which the engine chooses the slot, and returns its turn; nil if it passes through.
func (w *world) float(r Request, predict int) *Turn {
	turn, err := w.tier.Begin(context.Background(), r)
	if errors.Is(err, ErrTaken) {
		w.passes(r, predict)
		return nil
	}
	require.NoError(w.t, err)
	turn.End(w.engine.choose(r.Tokens).run(w.engine, context.Background(), r.Tokens, predict))
	w.accounted()
	return turn
}

// passes sends a prompt of which nothing is known.
func (w *world) passes(r Request, predict int) {
	end := w.tier.Unknown()
	w.engine.choose(r.Tokens).run(w.engine, context.Background(), r.Tokens, predict)
	end(true)
}

// TestTheEngineChoosesTheSlot: conversations for which it does, beside one for which it does not, go on in their
// slots, and come back after a kill.
func TestTheEngineChoosesTheSlot(t *testing.T) {
	for _, slots := range []int{1, 2, 4} {
		for _, hybrid := range []bool{false, true} {
			w := (&world{t: t, hybrid: hybrid}).start(slots, 1000)
			second := func(n int) []int32 { return slices.Concat(prompt(1, 100), prompt(2, n)) }
			for n := 200; n <= 400; n += 100 {
				require.True(t, w.float(loose(prompt(1, n)), 5).found())
				require.True(t, w.float(loose(second(n)), 5).found())
				w.ask(ask(prompt(3, n)), 5)
				w.idle()
			}
			for _, s := range w.tier.table.slots {
				require.False(t, s.unknown || s.broken)
			}
			w.killed()
			if hybrid {
				continue // few of its sequences have ended where the next prompts part
			}
			require.Equal(t, 400, w.float(loose(prompt(1, 410)), 5).restored.tokens)
			require.Equal(t, 400, w.float(loose(second(410)), 5).restored.tokens)
			require.Equal(t, 400, w.ask(ask(prompt(3, 410)), 5))
		}
	}
}

// found reports whether it is known in which slot the engine has run a turn's request.
func (u *Turn) found() bool { return u.search == nil || u.search.found }

// TestAnotherSlotThanTheExpected: the turn moves to the one that the engine has chosen, and is stored from
// there; the other one serves others.
func TestAnotherSlotThanTheExpected(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		w := (&world{t: t, hybrid: hybrid}).start(3, 1000)
		w.ask(ask(prompt(3, 200)), 5)
		other := w.engine.slots[1]
		w.engine.whim = func(free []*fakeSlot) *fakeSlot { return other }
		turn := w.begin(loose(prompt(1, 300)))
		require.Equal(t, 2, turn.Slot())
		use := w.engine.choose(prompt(1, 300))
		<-turn.search.done
		beside := []*Turn{w.begin(ask(prompt(4, 100))), w.begin(ask(prompt(5, 100)))}
		require.NotEqual(t, beside[0].Slot(), beside[1].Slot())
		for _, u := range beside {
			require.NotEqual(t, 1, u.Slot())
			u.Drop()
		}
		turn.End(use.run(w.engine, t.Context(), prompt(1, 300), 5))
		w.engine.whim = nil
		next := w.float(loose(slices.Concat(prompt(1, 300), prompt(2, 50))), 5)
		require.Equal(t, 1, next.Slot())
		require.True(t, next.found())
		tokens := slices.Clone(other.tokens)
		w.killed()
		require.Equal(t, len(tokens), w.float(loose(append(tokens, 1, 2, 3)), 5).restored.tokens)
	}
}

// TestAnotherSimilarity: the slot that the engine chooses is the expected one, whatever part of a prompt it must find.
func TestAnotherSimilarity(t *testing.T) {
	for part, want := range map[float64]int{0: 2, 0.5: 1, 0.7: 2, 1: 2} {
		w := newWorld(t, 3, 1000)
		w.engine.similarity, w.tier.table.similarity = part, part
		for i, n := range []int{2, 1, 3} {
			require.Equal(t, 2-i, w.float(loose(prompt(n, 200)), 5).s.id)
		}
		turn := w.float(loose(prompt(1, 300)), 5) // 200 of them are held
		require.True(t, turn.found())
		require.Equal(t, []int{want, want}, []int{turn.s.id, turn.Slot()}, part)
	}
}

// TestASlotThatNobodyKnows: the engine gives a request a slot that another one has and does not use yet. Neither
// is stored, and no slot as long as its rows may be anybody's.
func TestASlotThatNobodyKnows(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.calm()
	w.tier.patience.search = 0
	w.ask(ask(prompt(3, 200)), 5)
	w.idle()
	named := w.begin(ask(prompt(4, 150)))
	taken := w.engine.slots[named.Slot()]
	w.engine.whim = func([]*fakeSlot) *fakeSlot { return taken }
	turn := w.float(loose(prompt(1, 300)), 5)
	require.False(t, turn.found())
	taken.spoil()
	named.End(taken.complete(w.engine, t.Context(), prompt(4, 150), 5))
	w.engine.whim = nil
	w.idle()
	for _, s := range w.tier.table.slots {
		require.True(t, s.unknown || s.broken)
	}
	w.killed()
	require.Zero(t, w.float(loose(prompt(1, 400)), 5).restored.tokens)
	require.Zero(t, w.ask(ask(prompt(4, 200)), 5))
	require.NotZero(t, w.ask(ask(prompt(3, 300)), 5))
}

// TestOthersWaitForASlotToBeChosen, and not for longer than a while, nor those of which nothing is known.
func TestOthersWaitForASlotToBeChosen(t *testing.T) {
	w := newWorld(t, 3, 1000)
	w.tier.patience.search = time.Hour
	turn := w.begin(loose(prompt(1, 300)))
	for _, r := range []Request{ask(prompt(2, 100)), loose(prompt(2, 100))} {
		gone, cancel := context.WithCancel(t.Context())
		w.engine.onEnter("/slots", cancel) // the search goes on
		_, err := w.tier.Begin(gone, r)
		require.ErrorIs(t, err, context.Canceled)
	}
	begun := make(chan *Turn)
	go func() { begun <- w.begin(loose(prompt(2, 100))) }()
	go func() { begun <- w.begin(ask(prompt(3, 100))) }()
	use := w.engine.choose(prompt(1, 300))
	(<-begun).Drop()
	(<-begun).Drop()
	turn.End(use.run(w.engine, t.Context(), prompt(1, 300), 5))

	turn = w.begin(loose(prompt(1, 310)))
	unknown := make(chan func(bool))
	go func() { unknown <- w.tier.Unknown() }()
	use = w.engine.choose(prompt(1, 310))
	(<-unknown)(false)
	turn.End(use.run(w.engine, t.Context(), prompt(1, 310), 5))
	require.True(t, turn.found())

	w.tier.patience.search = 0
	late := w.begin(loose(prompt(5, 300)))
	w.begin(ask(prompt(6, 100))).Drop()
	late.Drop()
	require.Zero(t, w.tier.table.unknown)
}

// TestASlotThatAnotherRequestHas, which does not run yet: llama-server does not get a new conversation before.
func TestASlotThatAnotherRequestHas(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.tier.patience.search = time.Hour
	named := w.begin(ask(prompt(1, 300)))
	looked, begun := make(chan struct{}), make(chan *Turn)
	w.tier.asker.doubt()
	w.engine.onEnter("/metrics", func() { w.engine.onEnter("/slots", func() { close(looked) }) })
	go func() { begun <- w.begin(loose(prompt(2, 300))) }()
	<-looked
	s := w.engine.slots[named.Slot()]
	s.use.Lock()
	turn := <-begun
	require.True(t, turn.search.before[named.Slot()].Running)
	s.use.Unlock()
	turn.Drop()
	named.Drop()
}

// TestARequestThatBeginsLate, or never: its client went away before the engine began it.
func TestARequestThatBeginsLate(t *testing.T) {
	for name, begins := range map[string]bool{"late": true, "never": false} {
		w := newWorld(t, 2, 1000)
		w.calm()
		w.ask(ask(prompt(3, 200)), 5)
		if !begins {
			w.tier.patience.search = 0
		}
		gone, cancel := context.WithCancel(t.Context())
		turn, err := w.tier.Begin(gone, Request{Tokens: prompt(1, 300), Slot: -1, Loose: true, Cancel: cancel})
		require.NoError(t, err)
		cancel()
		over := beside(func() {
			if begins {
				w.engine.choose(prompt(1, 300)).run(w.engine, gone, prompt(1, 300), 1000)
			}
		})
		turn.End(nil)
		<-over
		require.Equal(t, begins, turn.found(), name)
		require.Equal(t, !begins, w.tier.table.slots[0].unknown)
		require.Zero(t, w.tier.table.unknown)
	}
}

// TestAResumedChatWhoseSlotTheEngineChooses is stored if it takes the one that has the chat.
func TestAResumedChatWhoseSlotTheEngineChooses(t *testing.T) {
	for slot, found := range map[int]bool{1: true, 0: false} {
		w := newWorld(t, 2, 1000)
		w.tier.patience.search = time.Millisecond
		turn := w.begin(loose(prompt(1, 300)))
		turn.End(w.engine.slots[turn.Slot()].complete(w.engine, t.Context(), prompt(1, 300), 5))
		last := turn.Served()
		turn = w.tier.Resume(t.Context(), last, loose(nil))
		require.NotNil(t, turn)
		require.Nil(t, w.tier.Resume(t.Context(), last, loose(nil)))
		tokens := slices.Concat(prompt(1, 300), prompt(2, 20))
		answer := w.engine.slots[slot].complete(w.engine, t.Context(), tokens, 5)
		turn.Learn(loose(tokens))
		turn.End(answer)
		require.Equal(t, found, turn.found())
		w.killed()
		require.Equal(t, found, endOf(w.found(tokens)) == 320)
	}
}

// TestSlotsThatCannotBeSeen: a request is answered, and nothing is stored.
func TestSlotsThatCannotBeSeen(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.engine.lie = "[]"
	require.False(t, w.float(loose(prompt(1, 300)), 5).found())
	w.killed()
	require.Empty(t, w.found(prompt(1, 300)))
}

// TestNoSlotIsChosenBesideAnUnknownRequest: nobody could tell the two apart.
func TestNoSlotIsChosenBesideAnUnknownRequest(t *testing.T) {
	w := newWorld(t, 2, 1000)
	end := w.tier.Unknown()
	_, err := w.tier.Begin(t.Context(), loose(prompt(1, 300)))
	require.ErrorIs(t, err, ErrTaken)
	end(false)
	require.True(t, w.float(loose(prompt(1, 300)), 5).found())
}

// newChats is a world whose model has a state, and where it is known how messages of users begin.
func newChats(t *testing.T, slots, context int) *world {
	return (&world{t: t, hybrid: true, change: func(o *Options) { o.UserStart = []int32{1011, 7} }}).start(slots, context)
}

// TestRequestsInStepsBesideOneThatWaits for a slot of theirs.
func TestRequestsInStepsBesideOneThatWaits(t *testing.T) {
	w := newChats(t, 2, 4000)
	text := func(seed int) []int32 {
		return slices.Concat(prompt(seed, 300), []int32{1011, 7}, prompt(seed+1, 300), opening)
	}
	begun, hold := make(chan *Turn), make(chan struct{})
	for seed := range 2 {
		entered := make(chan struct{})
		w.engine.onEnter("/completion", func() { close(entered); <-hold })
		go func() { begun <- w.begin(loose(text(10 * seed))) }()
		<-entered
	}
	waits := make(chan *Turn)
	go func() { waits <- w.begin(loose(text(50))) }()
	require.Eventually(t, func() bool {
		w.tier.table.mu.Lock()
		defer w.tier.table.mu.Unlock()
		return len(w.tier.table.waiting) == 1
	}, time.Minute, time.Millisecond)
	close(hold)
	(<-begun).Drop()
	(<-begun).Drop()
	(<-waits).Drop()
}

// shifted is a world with two slots that are stored, and a prompt that shifts the context of either.
func shifted(t *testing.T) (w *world, tokens []int32, predict int) {
	w = newWorld(t, 2, 300)
	w.tier.patience.leave, w.tier.patience.search = 0, time.Millisecond
	w.ask(ask(prompt(7, 100)), 5)
	w.ask(ask(prompt(8, 100)), 5)
	w.tier.Unknown()(false)
	w.tier.storing.Wait()
	return w, prompt(1, 200), 250
}

// requireUnstored requires that nothing of a slot is stored whose context was shifted.
func (w *world) requireUnstored(slot int) {
	tokens := append(slices.Clone(w.engine.slots[slot].tokens), 1, 2, 3)
	w.ask(Request{Tokens: tokens, Slot: slot}, 3)
	w.killed()
	w.ask(ask(append(tokens, 4, 5, 6)), 3) // the engine looks at each row that it is given
}

// TestASlotOfARefusedRequest: a request that passes through is refused in the slot that is expected, and the
// engine chooses the one unused for longest: the other one.
func TestASlotOfARefusedRequest(t *testing.T) {
	w, tokens, predict := shifted(t)
	var end func(computed bool)
	w.engine.onEnter("/slots", func() { end = w.tier.Unknown() })
	turn := w.begin(loose(tokens))
	s, other := w.engine.slots[turn.Slot()], 1-turn.Slot()
	require.Nil(t, s.complete(w.engine, t.Context(), prompt(3, 400), 5))
	end(false)
	turn.End(w.engine.slots[other].complete(w.engine, t.Context(), tokens, predict))
	require.False(t, turn.found())
	w.requireUnstored(other)
}

// TestASlotOfARequestThatWasGivenUp: the request, or a step of one, begins in the slot that is expected.
func TestASlotOfARequestThatWasGivenUp(t *testing.T) {
	for name, begin := range map[string]func(w *world, tokens []int32) *Turn{
		"the last request": func(w *world, tokens []int32) *Turn {
			w.begin(ask(tokens)).End(nil)
			_, err := w.tier.Begin(t.Context(), loose(tokens))
			require.ErrorIs(t, err, ErrTaken)
			return nil
		},
		"one before": func(w *world, tokens []int32) *Turn {
			turn := w.begin(ask(tokens))
			turn.End(nil)
			w.ask(Request{Tokens: tokens[:50], Slot: turn.Slot()}, 5)
			_, err := w.tier.Begin(t.Context(), loose(tokens[:50]))
			require.ErrorIs(t, err, ErrTaken)
			return nil
		},
		"a step": func(w *world, tokens []int32) *Turn {
			turn := w.begin(loose(tokens))
			w.tier.table.gaveUp(turn.s)
			return turn
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, tokens, predict := shifted(t)
			turn := begin(w, tokens)
			if turn == nil {
				return
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			w.engine.slots[turn.Slot()].complete(w.engine, gone, tokens, 5)
			other := 1 - turn.Slot()
			turn.End(w.engine.slots[other].complete(w.engine, t.Context(), tokens, predict))
			require.False(t, turn.found())
			w.requireUnstored(other)
		})
	}
}

// TestAFoundRequestThatIsGivenUp has begun: the next one goes on with its slot.
func TestAFoundRequestThatIsGivenUp(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.calm()
	turn := w.begin(loose(prompt(1, 300)))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.engine.slots[turn.Slot()].complete(w.engine, gone, prompt(1, 300), 5)
	turn.End(nil)
	require.True(t, turn.found())
	next := w.float(loose(prompt(1, 320)), 5)
	require.True(t, next.found())
	require.Equal(t, turn.Slot(), next.Slot())
}

// refusals is a log that is called for a slot that is not stored.
type refusals func()

func (refused refusals) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("slot not stored")) {
		refused()
	}
	return len(line), nil
}

// TestTheDaemonEndsBeforeARequestHasASlot: the other slots are saved.
func TestTheDaemonEndsBeforeARequestHasASlot(t *testing.T) {
	refused := make(chan struct{})
	log := refusals(sync.OnceFunc(func() { close(refused) }))
	w := &world{t: t, change: func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}}
	w.start(2, 1000)
	w.ask(ask(prompt(7, 300)), 5)
	gone, cancel := context.WithCancel(t.Context())
	r := loose(prompt(1, 200))
	r.Cancel = cancel
	turn, err := w.tier.Begin(gone, r)
	require.NoError(t, err)
	ended := beside(func() {
		<-gone.Done()
		<-refused // the save of the first slot
		w.engine.slots[turn.Slot()].complete(w.engine, gone, prompt(1, 200), 5)
		turn.End(nil)
	})
	w.tier.Flush(t.Context())
	<-ended
	require.True(t, turn.found())
	require.NotEmpty(t, w.found(prompt(7, 300)))
}

// TestStepsInAnotherSlot than the engine has chosen do not add to the prompt.
func TestStepsInAnotherSlot(t *testing.T) {
	w := newChats(t, 2, 4000)
	tokens := slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2, 300), opening)
	turn := w.begin(loose(tokens))
	require.NotNil(t, turn.Staged)
	turn.End(w.engine.slots[1-turn.Slot()].complete(w.engine, t.Context(), tokens, 5))
	require.True(t, turn.found())
	w.tier.why.Wait(time.Minute)
	_, prompts := w.meter.Read()
	require.Len(t, prompts, 1)
	require.Equal(t, len(tokens), prompts[0].Tokens)
	require.Equal(t, len(tokens), prompts[0].Computed)
}

// TestTwoSearches: one was held up by its steps, and the engine has not begun the other one in a while.
func TestTwoSearches(t *testing.T) {
	w := newChats(t, 3, 4000)
	w.tier.patience.search = time.Second
	begun, entered, hold := make(chan *Turn), make(chan struct{}), make(chan struct{})
	w.engine.onEnter("/completion", func() { close(entered); <-hold })
	go func() {
		begun <- w.begin(loose(slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2, 300), opening)))
	}()
	<-entered
	first := w.begin(loose(prompt(40, 100)))
	close(hold)
	second := <-begun // after a second
	third := w.engine.slots[3-first.Slot()-second.Slot()]
	require.Nil(t, third.complete(w.engine, t.Context(), prompt(3, 4000), 5))
	second.Drop()
	w.tier.table.mu.Lock()
	w.tier.table.isShut = true // a search after these
	w.tier.table.mu.Unlock()
	first.End(w.engine.slots[second.Slot()].complete(w.engine, t.Context(), prompt(40, 100), 5))
	require.False(t, first.found())
}
