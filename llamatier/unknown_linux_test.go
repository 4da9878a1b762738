package llamatier

import (
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
	w.tier.Flush(t.Context())

	w.start(2, 1000)
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
	w.tier.Flush(t.Context())
	w.start(1, 1000)
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
		stored := len(w.found(prompt(1, 200)))
		w.tier.patience.unknown = time.Millisecond
		s, came := w.engine.slots[0], false
		w.engine.onLeave("/slots/0?action="+action, func() {
			end := w.tier.Unknown()
			s.complete(w.engine, t.Context(), prompt(1, 200), 5)
			s.spoil()
			end(true)
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
