package llamatier

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

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
