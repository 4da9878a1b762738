package llamatier

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// TestARequestOfWhichNothingIsKnown: the conversation that it takes the slot from comes back.
func TestARequestOfWhichNothingIsKnown(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.calm()
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(2, 100)), 5))
	end := w.tier.Unknown()
	for _, s := range w.engine.slots {
		s.complete(w.engine, t.Context(), prompt(3, 50), 5)
	}
	end(true)
	w.killed()
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 100, w.ask(ask(prompt(2, 200)), 5))
	require.Zero(t, w.ask(ask(prompt(3, 90)), 5))
}

// TestAnIdleSlotBeforeAnUnknownRequest was saved without its tail, and is saved again.
func TestAnIdleSlotBeforeAnUnknownRequest(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.calm()
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	w.idle()
	w.tier.Unknown()(true)
	w.killed()
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
}

// TestAHungEngineBeforeAnUnknownRequest holds the request up for a while, and not until the
// engine is given up.
func TestAHungEngineBeforeAnUnknownRequest(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.tier.patience.unknown = 20 * time.Millisecond
	w.ask(ask(prompt(1, 200)), 5)
	w.ask(ask(prompt(2, 200)), 5)
	hang := make(chan struct{})
	w.engine.onEnter("/slots/0", func() { <-hang })
	w.tier.Unknown()(true)
	close(hang)
	w.tier.Flush(t.Context())
	for seed := range 3 {
		require.Empty(t, w.found(prompt(seed, 200)), "the request may have run in any slot")
	}
}

// TestNoUselessSavesBeforeAnUnknownRequest: a save that would store nothing, or must wait for
// the engine to leave a request, does not hold up another request.
func TestNoUselessSavesBeforeAnUnknownRequest(t *testing.T) {
	for name, last := range map[string]func(w *world){
		"another one": func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.Unknown()(true) },
		"unknown rows": func(w *world) {
			w.engine.refuseNext("/slots/0?action=erase", 2)
			w.tier.Unknown()(true)
			w.ask(ask(prompt(1, 200)), 5)
			w.ask(ask(prompt(1, 220)), 5)
		},
		"private": func(w *world) { w.ask(private(prompt(1, 200)), 5) },
		"unheard": func(w *world) { w.begin(ask(prompt(1, 200))).End(nil) },
		"off":     func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.Off(telemetry.ObstacleOption, "a test") },
		"closed":  func(w *world) { w.ask(ask(prompt(1, 200)), 5); w.tier.table.closed = true },
	} {
		w := newWorld(t, 1, 1000)
		last(w)
		w.engine.onEnter("/slots", func() { t.Error(name) })
		w.engine.onEnter("/slots/0", func() { t.Error(name) })
		w.tier.Unknown()(true)
		w.tier.storing.Wait()
	}
}

// TestARequestThatNobodyWaitsFor: llama-server was reading a request when its client went away, and
// begins the request after the one behind it. The rows of that request are not stored.
func TestARequestThatNobodyWaitsFor(t *testing.T) {
	for name, late := range map[string][]int32{
		"another prompt":       prompt(9, 120),
		"the prompt goes on":   prompt(1, 180),
		"the prompt parts":     slices.Concat(prompt(1, 50), prompt(9, 80)),
		"a page and no more":   prompt(9, testPage),
		"as long, and another": prompt(9, 101),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1000)
			w.ask(ask(prompt(1, 100)), 2)
			require.NotNil(t, w.engine.slots[0].complete(w.engine, t.Context(), late, 2))
			w.idle()
			require.Empty(t, w.found(late))

			w.askAndIdle(ask(prompt(4, 100)), 2)
			require.Empty(t, w.found(late))
			require.NotEmpty(t, w.found(prompt(4, 100)))
		})
	}
}

// spoil makes the rows of a slot those of another model.
func (s *fakeSlot) spoil() {
	s.use.Lock() // another request may have begun
	defer s.use.Unlock()
	for i := range s.rows {
		s.rows[i] = row([]int32{int32(-i)})
	}
}

// TestAnUnknownRequestAfterAnAnswer whose client reads slowly: llama-server has left the slot, and
// computes the same prompt again, with an adapter. Those rows are not the answer's.
func TestAnUnknownRequestAfterAnAnswer(t *testing.T) {
	w := newWorld(t, 1, 1000)
	turn, s := w.begin(ask(prompt(1, 100))), w.engine.slots[0]
	answer := s.complete(w.engine, t.Context(), prompt(1, 100), 5)
	end := w.tier.Unknown()
	s.complete(w.engine, t.Context(), prompt(1, 100), 5)
	s.spoil()
	end(true)
	turn.End(answer)
	w.idle()
	require.Empty(t, w.found(prompt(1, 100)))

	w.askAndIdle(ask(prompt(2, 100)), 5)
	require.NotEmpty(t, w.found(prompt(2, 100)))
}

// TestAnUnknownRequestAfterAnAction: llama-server has restored a slot, or emptied it, and begins and
// ends a request of which nothing is known before the answer to the action arrives.
func TestAnUnknownRequestAfterAnAction(t *testing.T) {
	for action, before := range map[string]func(w *world){
		"restore": func(w *world) { w.ask(ask(prompt(1, 100)), 5); w.tier.Flush(t.Context()); w.start(1, 1000) },
		"erase":   func(w *world) { w.ask(private(prompt(2, 100)), 5) },
	} {
		w := newWorld(t, 1, 1000)
		before(w)
		stored, s, came := len(w.found(prompt(1, 200))), w.engine.slots[0], false
		w.tier.patience.unknown = time.Millisecond
		w.engine.onLeave("/slots/0?action="+action, func() {
			defer w.tier.Unknown()(true)
			s.complete(w.engine, t.Context(), prompt(1, 200), 5)
			s.spoil()
			came = true
		})
		w.ask(ask(prompt(1, 200)), 5)
		require.True(t, came, action)
		w.idle()
		require.Len(t, w.found(prompt(1, 200)), stored, action)
	}
}

// TestALateRequestThatIsShorter leaves the beginning of the last prompt in the slot, computed with
// an adapter.
func TestALateRequestThatIsShorter(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 100)), 5)
	s := w.engine.slots[0]
	s.complete(w.engine, t.Context(), prompt(1, 60), 1)
	s.spoil()
	w.idle()
	require.Empty(t, w.found(prompt(1, 100)))
}

// TestARequestThatTheEngineHasRefused computed nothing: tokens of the slots are stored, those from
// before it and those computed beside it, and nothing is restored in their place.
func TestARequestThatTheEngineHasRefused(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	end := w.tier.Unknown()
	w.askAndIdle(ask(prompt(1, 300)), 5)
	require.Equal(t, 200, endOf(w.found(prompt(1, 300))), "it may yet compute")
	end(false)
	w.askAndIdle(ask(prompt(1, 400)), 5)
	require.Equal(t, 400, endOf(w.found(prompt(1, 400))))
	require.Zero(t, w.engine.restored)
}

// TestAShiftedSlotIsNotStored, nor anything that follows in the slot, until the slot was empty.
func TestAShiftedSlotIsNotStored(t *testing.T) {
	w := newWorld(t, 1, 128)
	w.askAndIdle(ask(prompt(1, 100)), 60)
	require.Empty(t, w.found(prompt(1, 100)))

	// The engine reuses rows of the shifted context.
	held := slices.Clone(w.engine.slots[0].tokens)
	w.engine.refuseNext("/slots/0?action=erase", 1)
	w.askAndIdle(ask(held[:80]), 2)
	require.Empty(t, w.found(held[:80]))

	w.askAndIdle(ask(prompt(2, 90)), 2)
	require.NotEmpty(t, w.found(prompt(2, 90)))
}

// TestPrivateRequests leave nothing in the store, and the request after them nothing of theirs.
func TestPrivateRequests(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.askAndIdle(private(prompt(1, 100)), 2)
	w.askAndIdle(ask(prompt(1, 150)), 2)
	require.Empty(t, w.found(prompt(1, 150)))
	w.askAndIdle(ask(prompt(2, 100)), 2)
	require.NotEmpty(t, w.found(prompt(2, 100)))
}

// TestAShiftBetweenTwoSavesIsNotForgotten: the request after it extends the prompt before the
// slot is saved, and reuses shifted rows.
func TestAShiftBetweenTwoSavesIsNotForgotten(t *testing.T) {
	for _, heard := range []bool{true, false} {
		w := newWorld(t, 1, 128)
		turn := w.begin(ask(prompt(1, 100)))
		a := w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 100), 60)
		if !heard {
			a = nil
		}
		turn.End(a)
		held := slices.Clone(w.engine.slots[0].tokens)
		w.engine.refuseNext("/slots/0?action=erase", 1)
		w.askAndIdle(ask(held[:80]), 2)
		require.Empty(t, w.found(held[:80]))
	}
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
		w := newWorld(t, 1, 256)
		w.engine.generated = c.before
		ctx, cancel := context.WithCancel(t.Context())
		turn, err := w.tier.Begin(ctx, Request{Tokens: prompt(1, 100), Slot: -1, Cancel: cancel})
		require.NoError(t, err)
		w.engine.late = late
		cancel()
		require.Nil(t, w.engine.slots[0].complete(w.engine, ctx, prompt(1, 100), 1000))
		turn.End(nil)
		w.idle()
		require.Equal(t, stored, len(w.found(prompt(1, 100))) > 0, "%+v", c)
	}
}

// TestACancelledAnswerThatGoesOn is stored: both answers together cannot have filled the slot.
func TestACancelledAnswerThatGoesOn(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.unheard(prompt(1, 100), 60)
	w.askAndIdle(ask(prompt(1, 150)), 2)
	require.NotEmpty(t, w.found(prompt(1, 150)))
}

// spoil leaves rows in the only slot that must not be stored.
var spoil = map[string]func(w *world){
	"shifted": func(w *world) { w.ask(ask(prompt(1, 250)), 60) },
	"private": func(w *world) { w.ask(private(prompt(1, 100)), 2) },
	"unknown": func(w *world) {
		end := w.tier.Unknown()
		w.engine.slots[0].complete(w.engine, context.Background(), prompt(1, 100), 5)
		end(true)
	},
}

// TestASlotIsStoredAgain after rows that must not be stored, although all conversations begin
// with the same token.
func TestASlotIsStoredAgain(t *testing.T) {
	for name, spoil := range spoil {
		w := newWorld(t, 1, 256)
		w.calm()
		spoil(w)
		another := slices.Concat(prompt(1, 1), prompt(2, 100))
		w.askAndIdle(ask(another), 2)
		require.NotEmpty(t, w.found(another), name)
	}
}

// TestAConversationIsStoredAgain after rows that must not be stored: its pages replace the rows of
// its slot, of which it computes less than a page again.
func TestAConversationIsStoredAgain(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.calm()
	w.askAndIdle(ask(prompt(1, 200)), 2)
	w.tier.Unknown()(true) // it ran in the engine's memory only, and the slot is as it was
	computed := w.engine.computed
	w.askAndIdle(ask(prompt(1, 400)), 2)
	require.LessOrEqual(t, w.engine.computed-computed, 200+testPage)
	require.Len(t, w.found(prompt(1, 400)), 400/testPage)
}

// TestASlotWithoutPages is left as it is while it holds most of a prompt.
func TestASlotWithoutPages(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(private(prompt(1, 200)), 2)
	computed := w.engine.computed
	w.ask(ask(prompt(1, 210)), 2)
	require.Equal(t, 10, w.engine.computed-computed)
}

// TestAPromptThatIsCancelledAndAskedAgain while the engine still computes it, for longer than the Tier
// waits: the conversation is stored, and so are its next turns.
func TestAPromptThatIsCancelledAndAskedAgain(t *testing.T) {
	for name, next := range map[string]func(w *world){
		"at once":       func(w *world) { w.again(ask(prompt(1, 320))) },
		"several times": func(w *world) { w.cancelled(prompt(1, 310)); w.again(ask(prompt(1, 320))) },
		"the counter fails": func(w *world) {
			w.again(ask(prompt(1, 310)))
			w.tier.storing.Wait()
			w.engine.refuseNext("/metrics", 1)
			w.idle()
			w.again(ask(prompt(1, 320)))
		},
		"with an image behind it": func(w *world) {
			w.again(Request{Tokens: prompt(1, 305), Rest: prompt(2, 30), Slot: -1})
			w.again(ask(prompt(1, 320)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1000)
			w.tier.patience.leave = 0
			w.askAndIdle(ask(prompt(1, 100)), 5)
			w.cancelled(prompt(1, 300))
			next(w)
			w.idle()
			require.Equal(t, 320, endOf(w.found(prompt(1, 320))))
			w.askAndIdle(ask(prompt(1, 400)), 5)
			require.Equal(t, 400, endOf(w.found(prompt(1, 400))))
		})
	}
}

// cancelled begins a request whose client goes away while the engine computes a batch of it.
func (w *world) cancelled(tokens []int32) {
	turn := w.begin(ask(tokens))
	w.engine.slots[turn.Slot()].use.TryLock() // or it computes the batch of another one
	turn.End(nil)
}

// again asks, and the engine answers after the batch of the request that was cancelled.
func (w *world) again(r Request) {
	turn := w.begin(r)
	s := w.engine.slots[turn.Slot()]
	if !s.use.TryLock() {
		s.use.Unlock()
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		require.Nil(w.t, s.complete(w.engine, gone, r.Tokens[:300], 5))
	} else {
		s.use.Unlock()
	}
	turn.End(s.complete(w.engine, context.Background(), slices.Concat(r.Tokens, r.Rest), 5))
}

// TestAPromptWhoseSlotIsNotLeft gets another one, if the engine has one that is free: the prompt is
// not one of which nothing is known, after which no slot would be stored.
func TestAPromptWhoseSlotIsNotLeft(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.tier.patience.leave = 0
	w.askAndIdle(ask(prompt(1, 200)), 5)
	w.cancelled(prompt(1, 300))
	w.tier.storing.Wait() // the tail, before the prompt's tokens replace it
	turn := w.begin(ask(prompt(1, 320)))
	require.Equal(t, 1, turn.Slot())
	require.Equal(t, 200, turn.restored.tokens)
	turn.End(w.engine.slots[1].complete(w.engine, t.Context(), prompt(1, 320), 5))
	w.engine.slots[0].use.Unlock()
	w.idle()
	require.Equal(t, 320, endOf(w.found(prompt(1, 320))))

	named := Request{Tokens: prompt(1, 330), Slot: 0, Cancel: func() {}}
	w.tier.table.slots[0].last, w.tier.table.slots[0].judged = nil, false
	w.engine.slots[0].use.Lock()
	_, err := w.tier.Begin(t.Context(), named)
	require.NoError(t, err, "it waits for the slot that it names")
	w.engine.slots[0].use.Unlock()
}

// TestAnEngineThatShiftsNoContext: all that is computed is stored, also where nobody knows how much
// that is, and where the slot is full.
func TestAnEngineThatShiftsNoContext(t *testing.T) {
	for name, before := range map[string]func(w *world){
		"clients read the counter": func(w *world) {
			w.tier.asker.engine.MetricsOfClients = true
			w.begin(ask(prompt(1, 200))).End(nil)
			w.engine.slots[0].complete(w.engine, context.Background(), prompt(1, 200), 30)
		},
		"an image that nobody waits for": func(w *world) {
			turn := w.begin(Request{Tokens: prompt(1, 100), Rest: prompt(2, 30), Slot: -1})
			w.engine.slots[0].complete(w.engine, context.Background(), slices.Concat(prompt(1, 100), prompt(2, 30)), 5)
			turn.End(nil)
		},
		"a full slot":               func(w *world) { w.ask(ask(prompt(1, 200)), 500) },
		"and nobody waits for that": func(w *world) { w.unheard(prompt(1, 200), 500) },
	} {
		t.Run(name, func(t *testing.T) {
			w := (&world{t: t, still: true}).start(1, 256)
			before(w)
			w.askAndIdle(ask(prompt(1, 240)), 5)
			require.Equal(t, 240, endOf(w.found(prompt(1, 240))))
		})
	}
}

// resume has the slot of the last request go on with a prompt, as far as it is learned, and reports
// whether the tier let it. With a negative number of tokens to predict the client goes away.
func (w *world) resume(tokens []int32, predict int, learned bool) bool {
	if len(tokens) == 0 {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	turn := w.tier.Resume(ctx, w.last, Request{Cancel: cancel})
	if turn == nil {
		return false
	}
	if predict < 0 {
		cancel()
	}
	answer := w.engine.slots[turn.Slot()].complete(w.engine, ctx, tokens, max(0, predict))
	if !learned {
		turn.Learn(Request{})
	} else {
		turn.Learn(ask(tokens))
		w.said = tokens
	}
	w.last = turn.Served()
	if turn.TooLong {
		turn.Drop()
	} else {
		turn.End(answer)
	}
	w.accounted()
	return true
}

// TestAResumedChatIsStored, with all of its turns.
func TestAResumedChatIsStored(t *testing.T) {
	w := newWorld(t, 1, 4000)
	w.ask(ask(prompt(1, 300)), 5)
	tokens := slices.Concat(prompt(1, 300), prompt(2, 50))
	require.True(t, w.resume(tokens, 5, true))
	require.Equal(t, 300, w.latest().Slot)
	tokens = slices.Concat(tokens, prompt(3, 40))
	require.True(t, w.resume(tokens, 5, true))
	w.idle()
	found := w.found(tokens)
	require.Len(t, found, len(tokens)/testPage)
	w.killed()
	require.Equal(t, len(tokens), w.ask(ask(append(tokens, 1)), 5))
}

// TestNoChatIsResumed where the slot may not hold it, or must not be stored.
func TestNoChatIsResumed(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"another request": func(w *world) {
			last := w.last
			w.ask(ask(prompt(7, 100)), 5)
			w.last = last
		},
		"it runs": func(w *world) { w.begin(ask(prompt(1, 310))) },
		"emptied": func(w *world) {
			w.tier.table.slots[0].used = w.tier.table.slots[0].used.Add(-usedLately)
			w.engine.slots[0].tokens = nil
		},
		"unknown runs":    func(w *world) { w.tier.Unknown() },
		"unknown ran":     func(w *world) { w.tier.Unknown()(true) },
		"no tokens known": func(w *world) { require.True(w.t, w.resume(prompt(1, 310), 5, false)) },
		"nobody heard":    func(w *world) { require.True(w.t, w.resume(prompt(1, 310), -1, true)) },
		"dropped": func(w *world) {
			turn := w.begin(ask(prompt(1, 310)))
			w.last = turn.Served()
			turn.Drop()
		},
		"a state":  func(w *world) { require.True(w.t, w.hybrid) },
		"closed":   func(w *world) { w.tier.Flush(context.Background()) },
		"private":  func(w *world) { w.ask(private(prompt(1, 310)), 5) },
		"an image": func(w *world) { w.ask(Request{Tokens: prompt(1, 310), Rest: []int32{5}, Slot: -1}, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			w := (&world{t: t, hybrid: name == "a state"}).start(1, 4000)
			w.ask(ask(prompt(1, 300)), 5)
			change(w)
			require.False(t, w.resume(prompt(1, 320), 5, true))
		})
	}
}

// TestAResumedPromptWithoutRoom is refused by the engine, and the slot stays as it is.
func TestAResumedPromptWithoutRoom(t *testing.T) {
	w := newWorld(t, 1, 400)
	w.ask(ask(prompt(1, 300)), 5)
	require.True(t, w.resume(slices.Concat(prompt(1, 300), prompt(2, 200)), 5, true))
	require.Equal(t, 300, w.ask(ask(prompt(1, 310)), 5)+w.latest().Slot)
}

// TestAResumedAnswerThatNobodyHears counts what was generated before it, even if the engine says so late.
func TestAResumedAnswerThatNobodyHears(t *testing.T) {
	w := newWorld(t, 1, 4000)
	w.ask(ask(prompt(1, 300)), 5)
	turn := w.tier.Resume(t.Context(), w.last, Request{Cancel: func() {}})
	before := w.engine.generated
	tokens := slices.Concat(prompt(1, 300), prompt(2, 20))
	w.engine.slots[0].complete(w.engine, t.Context(), tokens, 50)
	turn.Learn(ask(tokens))
	require.LessOrEqual(t, turn.counted, before)
	turn.End(nil)
}
