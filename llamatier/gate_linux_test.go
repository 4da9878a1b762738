package llamatier

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestASaveThatDoesNotPay is left out where a request waits for it, and the slot's tokens are computed
// again one day. At the end all is saved.
func TestASaveThatDoesNotPay(t *testing.T) {
	for name, test := range map[string]struct {
		slots int
		cost  time.Duration // of a save; 200 tokens take 200 ms
		other int           // requests that run besides
		want  int
	}{
		"quick":                 {1, 150 * time.Millisecond, 0, 200},
		"slow":                  {1, 300 * time.Millisecond, 0, 0},
		"it holds up an answer": {2, 150 * time.Millisecond, 1, 0},
		"nothing is known":      {1, 0, 0, 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.slots, 1000)
			tokens := prompt(1, 200)
			last := ask(tokens)
			last.Slot = 0
			w.ask(last, 2)
			computes(w.rates, time.Millisecond)
			if test.cost > 0 {
				saves(w.rates, fakeShape.RowBytes(201, 0), test.cost)
			}
			var others []*Turn
			for slot := 1; slot <= test.other; slot++ {
				r := ask(prompt(5, 100))
				r.Slot = slot
				others = append(others, w.begin(r))
			}
			next := ask(prompt(2, 100))
			next.Slot = 0
			w.ask(next, 2)
			w.tier.storing.Wait()
			require.Equal(t, test.want, endOf(w.found(tokens)))
			for _, turn := range others {
				turn.Drop()
			}
			w.tier.Flush(t.Context())
			require.Equal(t, 100, endOf(w.found(next.Tokens)))
		})
	}
}

// TestASaveThatStoresLittle: of a slot whose pages are stored only the others count.
func TestASaveThatStoresLittle(t *testing.T) {
	w := newWorld(t, 1, 1000)
	tokens := prompt(1, 200)
	w.askAndIdle(ask(tokens), 2)
	computes(w.rates, time.Millisecond)
	saves(w.rates, fakeShape.RowBytes(221, 0), 100*time.Millisecond)
	w.ask(ask(slices.Concat(tokens, prompt(3, 20))), 2)
	w.engine.requests()
	w.ask(ask(prompt(2, 100)), 2)
	require.Zero(t, w.engine.requests()["/slots/0"])
	w.tier.Flush(t.Context())
}

// TestIdleSlotsRest: saves hold up the answers in other slots for a hundredth of the time.
func TestIdleSlotsRest(t *testing.T) {
	w := newWorld(t, 2, 1000)
	for slot, tokens := range [][]int32{prompt(1, 100), prompt(2, 100)} {
		r := ask(tokens)
		r.Slot = slot
		w.ask(r, 2)
	}
	r := ask(prompt(3, 100))
	r.Slot = 1
	busy := w.begin(r)
	w.tier.storing.Wait()
	soon := time.Now().Add(time.Hour)
	w.tier.saver.rested.Store(&soon)
	w.idle()
	w.idle()
	require.Empty(t, w.found(prompt(1, 100)))
	past := time.Now()
	w.tier.saver.rested.Store(&past)
	w.idle()
	require.NotEmpty(t, w.found(prompt(1, 100)))
	until := *w.tier.saver.rested.Load()
	require.True(t, until.After(past), "the save before counts")

	w.tier.saver.rested.Store(&soon)
	busy.End(w.engine.slots[1].complete(w.engine, t.Context(), r.Tokens, 2))
	w.idle()
	require.NotEmpty(t, w.found(r.Tokens), "nobody is held up")
}
