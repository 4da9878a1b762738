package llamatier

import (
	"context"
	"testing"

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

// TestWhatCannotBeKeptApartIsRefused: the engine would choose a slot of any tenant.
func TestWhatCannotBeKeptApartIsRefused(t *testing.T) {
	w := newWorld(t, 2, 1000)
	end := w.tier.Unknown()
	_, err := w.tier.Begin(context.Background(), of(1, prompt(1, 200)))
	require.ErrorIs(t, err, ErrSeparate)
	end(false)
	w.ask(of(1, prompt(1, 200)), 5)
	require.Nil(t, w.tier.Unknown())
	_, err = w.tier.Begin(context.Background(), loose(prompt(1, 200)))
	require.ErrorIs(t, err, ErrSeparate)
}
