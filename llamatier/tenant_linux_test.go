package llamatier

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func of(name byte, tokens []int32) Request {
	r := ask(tokens)
	r.Tenant[0] = name
	return r
}

// TestTenantsShareNothing: neither the slot nor the store nor a later server has a prompt for another tenant.
func TestTenantsShareNothing(t *testing.T) {
	w := newWorld(t, 1, 1000)
	for _, name := range []byte{1, 2, 0} {
		w.ask(of(name, prompt(1, 200)), 5)
		require.Zero(t, w.engine.cached, "tenant %d", name)
		w.idle()
	}
	w.killed()
	for _, name := range []byte{3, 1, 2, 0} {
		want := 199
		if name == 3 {
			want = 0
		}
		before := w.engine.cached // of all requests
		w.ask(of(name, prompt(1, 200)), 5)
		require.Equal(t, want, w.engine.cached-before, "tenant %d", name)
	}
}

// TestATenantKeepsItsSlot: the same tenant goes on in the slot, and Resume is for it alone.
func TestATenantKeepsItsSlot(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(of(1, prompt(1, 200)), 5)
	require.Nil(t, w.tier.Resume(context.Background(), w.last, of(2, nil)))
	w.ask(of(1, prompt(1, 300)), 5)
	require.GreaterOrEqual(t, w.engine.cached, 199)
}

// passOf sends a tenant's prompt in a slot that the engine chooses.
func (w *world) passOf(r Request, predict int) *Answer {
	end, err := w.tier.Pass(context.Background(), r.Tenant)
	require.NoError(w.t, err)
	a := w.engine.choose(r.Tokens).run(w.engine, context.Background(), r.Tokens, predict)
	end(true, true)
	return a
}

// TestRequestsInAnySlotFindNothingOfOthers, neither in slots nor behind them.
func TestRequestsInAnySlotFindNothingOfOthers(t *testing.T) {
	w := newWorld(t, 3, 1000)
	for _, name := range []byte{1, 2, 0, 3} {
		w.ask(of(name, prompt(1, 200)), 5)
		require.Zero(t, w.engine.cached)
		require.Zero(t, w.passOf(of(name+10, prompt(1, 200)), 5).Cached)
	}
	require.Equal(t, 199, w.passOf(of(13, prompt(1, 200)), 5).Cached, "its own")
}

// TestAPassingRequestWaitsForOthers, who wait for it, and each gets what it waits for.
func TestAPassingRequestWaitsForOthers(t *testing.T) {
	w := newWorld(t, 2, 1000)
	turn := w.begin(of(1, prompt(1, 200)))
	type pass struct{ end func(computed, heard bool) }
	passed, asked := make(chan pass), make(chan *Turn)
	go func() {
		end, err := w.tier.Pass(context.Background(), Tenant{2})
		require.NoError(t, err)
		passed <- pass{end}
	}()
	require.Eventually(t, func() bool { return w.tier.table.shutsOut(Tenant{1}) }, time.Minute, time.Millisecond)
	go func() { asked <- w.begin(of(1, prompt(2, 200))) }()
	ctx, leave := context.WithCancel(context.Background())
	left := beside(func() {
		_, err := w.tier.Pass(ctx, Tenant{3})
		require.ErrorIs(t, err, context.Canceled)
	})
	require.Eventually(t, func() bool { return w.waiting() == 3 }, time.Minute, time.Millisecond)
	select {
	case <-passed:
		t.Fatal("a request of another tenant runs")
	case <-asked:
		t.Fatal("another tenant's request has leave to run in any slot")
	default:
	}
	leave()
	<-left
	turn.End(w.engine.slots[turn.Slot()].complete(w.engine, context.Background(), prompt(1, 200), 5))
	p := <-passed
	require.Empty(t, w.engine.slots[0].tokens)
	require.Empty(t, w.engine.slots[1].tokens)
	p.end(true, true)
	(<-asked).End(nil)
	require.Zero(t, w.waiting())
	require.Zero(t, w.tier.table.passes)
}

// waiting is the number of requests that wait for a slot, or to pass.
func (w *world) waiting() int {
	w.tier.table.mu.Lock()
	defer w.tier.table.mu.Unlock()
	return len(w.tier.table.waiting)
}
