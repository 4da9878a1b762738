package llamatier

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hurry makes a Tier impatient.
func (w *world) hurry() { w.tier.patience.look = time.Millisecond }

// calm makes a Tier patient, for a machine that is slow.
func (w *world) calm() {
	w.tier.patience.look, w.tier.patience.unknown = time.Minute, time.Minute
}

// landed waits until no action is held back.
func (w *world) landed(s *slot) {
	for acting := true; acting; runtime.Gosched() {
		w.tier.table.mu.Lock()
		acting = s.acting
		w.tier.table.mu.Unlock()
	}
}

// TestASaveBehindALongRequest: a request has come between the look at the slot and the save. The
// save is given up, and its file stays until llama-server has written it.
func TestASaveBehindALongRequest(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.hurry()
	w.ask(ask(prompt(1, 200)), 2)
	busy := &w.engine.slots[0].use
	w.engine.onEnter("/slots/0", busy.Lock)
	w.idle()
	require.Len(t, w.tier.saver.saving, 1, "the file is memory, and no other may be made")
	require.False(t, w.tier.obstacles.off.Load())
	require.Empty(t, w.found(prompt(1, 200)))

	busy.Unlock()
	w.landed(w.tier.table.slots[0])
	require.Empty(t, w.tier.saver.saving)
	w.askAndIdle(ask(prompt(1, 220)), 2)
	require.NotEmpty(t, w.found(prompt(1, 220)))
}

// TestARestoreBehindALongRequest: the prompt is computed, and nothing is stored of the slot in
// which the rows arrive later.
func TestARestoreBehindALongRequest(t *testing.T) {
	w := stored(t)
	w.hurry()
	busy := &w.engine.slots[0].use
	w.engine.onEnter("/slots/0", busy.Lock)
	turn := w.begin(ask(prompt(1, 250)))
	require.Zero(t, turn.restored.tokens)
	require.False(t, w.tier.obstacles.off.Load())
	busy.Unlock()
	w.landed(turn.s)
	require.Equal(t, 200, w.engine.restored)
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 250), 2))
	w.idle()
	for _, ref := range w.found(prompt(1, 250)) {
		require.LessOrEqual(t, int(ref.Start)+ref.Tokens, 200)
	}
}

// TestAnEngineThatDoesNotAnswer turns the Tier off, and is waited for no longer.
func TestAnEngineThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.tier.patience.end = time.Millisecond
	w.ask(ask(prompt(1, 200)), 2)
	hang := make(chan struct{})
	w.engine.onEnter("/slots/0", func() { <-hang })
	w.idle()
	require.True(t, w.tier.obstacles.off.Load())
	require.Zero(t, w.ask(ask(prompt(1, 250)), 2))
	close(hang)
	w.landed(w.tier.table.slots[0])
}

// TestOtherRequestsLetActionsEnd: llama-server could hold an action back for such a request,
// and with the action the requests behind it.
func TestOtherRequestsLetActionsEnd(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 2)
	entered, leave := make(chan struct{}), make(chan struct{})
	w.engine.onEnter("/slots/0", func() { close(entered); <-leave })
	idle := beside(w.pass)
	<-entered
	begun := beside(func() { w.tier.Unknown()(true) })
	select {
	case <-begun:
		require.Fail(t, "the action is not over")
	default:
	}
	close(leave)
	<-begun
	<-idle
	w.tier.storing.Wait()

	end := w.tier.Unknown()
	w.ask(ask(prompt(1, 300)), 2)
	w.engine.onEnter("/slots/0", func() { require.Fail(t, "a save beside a request of which nothing is known") })
	w.idle()
	end(true)
}

// TestASlotThatTheEngineHasGivenAway: another slot may be free.
func TestASlotThatTheEngineHasGivenAway(t *testing.T) {
	w := newWorld(t, 2, 1000)
	end := w.tier.Unknown()
	w.engine.slots[1].use.Lock()
	pinned := func(slot int) error {
		r := Request{Tokens: prompt(1, 100), Slot: slot, Cancel: func() {}}
		turn, err := w.tier.Begin(context.Background(), r)
		if err == nil {
			turn.End(nil)
		}
		return err
	}
	require.NoError(t, pinned(0))
	require.ErrorIs(t, pinned(1), ErrTaken)
	w.engine.slots[1].use.Unlock()
	require.NoError(t, pinned(1))
	end(true)
}

// TestTheOnlySlot is waited for, as without the Tier, and nothing is done with it before.
func TestTheOnlySlot(t *testing.T) {
	w := stored(t)
	end := w.tier.Unknown()
	busy := &w.engine.slots[0].use
	busy.Lock()
	w.engine.onEnter("/slots/0", func() { t.Error("an action on a slot that is in use") })
	turn := w.begin(ask(prompt(1, 250)))
	w.engine.onEnter("/slots/0", nil)
	require.Zero(t, turn.restored.tokens)
	busy.Unlock()
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 250), 2))
	end(true)
	w.idle()
	w.ask(ask(prompt(2, 100)), 2) // computed from the beginning
	w.idle()
	require.NotEmpty(t, w.found(prompt(2, 100)))
}

// leaves has the engine run a request in a slot until somebody has looked at it once.
func (w *world) leaves(slot int) {
	use := &w.engine.slots[slot].use
	use.Lock()
	w.engine.onEnter("/slots", func() { w.engine.onEnter("/slots", use.Unlock) })
}

// TestAnEngineThatNoticesLate that a client is gone: the slot is saved when the engine has left
// it, although another conversation is about to take it, or the server to end.
func TestAnEngineThatNoticesLate(t *testing.T) {
	for name, next := range map[string]func(w *world){
		"another": func(w *world) { w.ask(ask(prompt(2, 100)), 2); w.tier.storing.Wait() },
		"idle":    func(w *world) { w.idle(); w.idle(); w.idle() },
		"end":     func(w *world) { w.tier.Flush(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1000)
			w.unheard(prompt(1, 200), 5)
			w.leaves(0)
			next(w)
			require.NotEmpty(t, w.found(prompt(1, 200)))
		})
	}
}

// TestAnEngineThatGoesOn without a client, as llama-server does for its own page: other slots are
// saved at the end, and requests get them.
func TestAnEngineThatGoesOn(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.tier.patience.leave = time.Millisecond
	turn := w.begin(ask(prompt(1, 200)))
	w.ask(ask(prompt(2, 200)), 5)
	turn.End(nil)
	w.engine.slots[turn.Slot()].use.Lock()
	other, err := w.tier.Begin(t.Context(), ask(prompt(1, 210)))
	require.NoError(t, err)
	require.Equal(t, 1-turn.Slot(), other.Slot())
	other.Drop()
	w.tier.patience.leave = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	w.tier.Flush(ctx)
	require.NotEmpty(t, w.found(prompt(2, 200)))
}

// TestAnEngineThatNoticesLaterThanTheTierWaits: the slot is saved when the engine has left it, although
// no other request comes.
func TestAnEngineThatNoticesLaterThanTheTierWaits(t *testing.T) {
	w := newWorld(t, 2, 1000)
	w.tier.patience.leave = 0
	w.cancelled(prompt(1, 200))
	w.idle()
	end := w.tier.Unknown()
	w.engine.slots[0].use.Unlock()
	w.engine.slots[0].complete(w.engine, t.Context(), prompt(1, 200), 5)
	w.idle()
	end(false)
	require.Empty(t, w.found(prompt(1, 200)))
	w.idle()
	require.Equal(t, 192, endOf(w.found(prompt(1, 200))))
	require.Empty(t, w.timers)
}

// TestASlotThatIsEmpty, because the engine needed its room, is not saved: its file would be none that
// anybody understands.
func TestASlotThatIsEmpty(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.engine.slots[0].tokens, w.engine.slots[0].rows = nil, nil
	w.engine.onEnter("/slots/0", func() { t.Error("it is saved") })
	w.idle()
	w.engine.onEnter("/slots/0", nil)
	w.askAndIdle(ask(prompt(1, 210)), 5)
	require.Equal(t, 208, endOf(w.found(prompt(1, 210))))
}

// TestASaveThatHadToWait for the file of another slot is made some time later.
func TestASaveThatHadToWait(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.tier.patience.saving = time.Millisecond
	w.ask(ask(prompt(1, 100)), 5)
	w.tier.saver.saving <- struct{}{}
	w.pass()
	require.Len(t, w.timers, 1)
	<-w.tier.saver.saving
	w.tier.patience.saving = time.Minute
	w.idle()
	require.NotEmpty(t, w.found(prompt(1, 100)))
	require.Empty(t, w.timers)
}
