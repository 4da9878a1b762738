package llamatier

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	w.engine.refuseNext("/slots/0?action=erase", 1)
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
		w.engine.refuseNext("/slots/0?action=erase", 1)
		w.ask(ask(held[:80]), 2)
		w.idle()
		require.Empty(t, store.Chain(t.Context(), held[:80], nil))
		require.NoError(t, store.Close())
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

// spoil leaves rows in the only slot that must not be stored.
var spoil = map[string]func(w *world){
	"shifted": func(w *world) { w.ask(ask(prompt(1, 250)), 60) },
	"private": func(w *world) { w.ask(Request{Tokens: prompt(1, 100), Slot: -1, Private: true}, 2) },
	"unknown": func(w *world) {
		end := w.tier.Unknown()
		w.engine.slots[0].complete(w.engine, context.Background(), prompt(1, 100), 5)
		end()
	},
}

// TestASlotIsStoredAgain after rows that must not be stored, although all conversations begin
// with the same token.
func TestASlotIsStoredAgain(t *testing.T) {
	for name, spoil := range spoil {
		store := openStore(t)
		w := newWorld(t, store, 1, 256)
		w.calm()
		spoil(w)
		another := slices.Concat(prompt(1, 1), prompt(2, 100))
		w.ask(ask(another), 2)
		w.idle()
		require.NotEmpty(t, store.Chain(t.Context(), another, nil), name)
		require.NoError(t, store.Close())
	}
}

// TestAConversationIsStoredAgain after rows that must not be stored: its pages replace the rows of
// its slot, of which it computes less than a page again.
func TestAConversationIsStoredAgain(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.calm()
	w.ask(ask(prompt(1, 200)), 2)
	w.idle()
	w.tier.Unknown()() // it ran in the engine's memory only, and the slot is as it was
	computed := w.engine.computed
	w.ask(ask(prompt(1, 400)), 2)
	w.idle()
	require.LessOrEqual(t, w.engine.computed-computed, 200+testPage)
	require.Len(t, store.Chain(t.Context(), prompt(1, 400), nil), 400/testPage)
}

// TestASlotWithoutPages is left as it is while it holds most of a prompt.
func TestASlotWithoutPages(t *testing.T) {
	store := openStore(t)
	defer store.Close()
	w := newWorld(t, store, 1, 1000)
	w.ask(Request{Tokens: prompt(1, 200), Slot: -1, Private: true}, 2)
	computed := w.engine.computed
	w.ask(ask(prompt(1, 210)), 2)
	require.Equal(t, 10, w.engine.computed-computed)
}
