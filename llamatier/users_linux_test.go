package llamatier

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestRandomUsers: conversations that branch, requests that are given up, slots that shift,
// failures, restarts. The engine requires that every row which it is given is right.
func TestRandomUsers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "kvtier-users-")
		require.NoError(rt, err)
		defer os.RemoveAll(dir)
		store := openStore(rt, dir)
		defer store.Close()
		slots := rapid.IntRange(1, 3).Draw(rt, "slots")
		w := &world{t: rt, store: store, hybrid: rapid.Bool().Draw(rt, "hybrid"), stream: rapid.Bool().Draw(rt, "stream"), drafts: rapid.Bool().Draw(rt, "drafts")}
		w.start(slots, 256)
		w.tier.patience.leave, w.tier.patience.search = 0, 0
		var texts [][]int32
		for range rapid.IntRange(3, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom(strings.Fields("ask ask ask ask resume resume resumed giveup retype refused idle idle private unknown refuse restart memory together float float gone several several")).Draw(rt, "step") {
			case "ask":
				w.ask(ask(draw(rt, &texts)), rapid.IntRange(0, 200).Draw(rt, "predict"))
			case "resume": // as expected, or not
				tokens := append(slices.Clone(w.said), prompt(rapid.IntRange(1, 50).Draw(rt, "seed"), rapid.IntRange(0, 20).Draw(rt, "more"))...)
				if rapid.IntRange(0, 3).Draw(rt, "other") == 0 {
					tokens = draw(rt, &texts)
				}
				w.resume(tokens, rapid.IntRange(0, 200).Draw(rt, "predict"), rapid.IntRange(0, 4).Draw(rt, "learned") > 0)
			case "resumed": // the client goes away
				w.resume(append(slices.Clone(w.said), 4, 5), -1, true)
			case "giveup":
				w.giveUp(rt, draw(rt, &texts), w.idle)
			case "retype":
				tokens := draw(rt, &texts)
				w.giveUp(rt, tokens, func() { w.ask(ask(append(slices.Clone(tokens), 1, 2, 3)), 3) })
			case "float":
				w.engine.whim = whims(rapid.IntRange(-1, 2).Draw(rt, "whim"))
				w.float(loose(draw(rt, &texts)), rapid.IntRange(0, 200).Draw(rt, "predict"))
			case "gone": // before the engine has begun, or meanwhile
				w.engine.whim = whims(rapid.IntRange(-1, 2).Draw(rt, "whim"))
				w.engine.late = rapid.IntRange(0, 100).Draw(rt, "late")
				w.gone(loose(draw(rt, &texts)))
			case "several":
				w.engine.whim = whims(rapid.IntRange(-1, 2).Draw(rt, "whim"))
				w.several(ask(draw(rt, &texts)), rapid.IntRange(0, 200).Draw(rt, "predict"))
			case "refused":
				end := w.tier.Unknown()
				w.ask(ask(draw(rt, &texts)), 3)
				end(false)
			case "private":
				w.ask(private(draw(rt, &texts)), 3)
			case "unknown":
				tokens := draw(rt, &texts)
				s := w.engine.slots[rapid.IntRange(0, slots-1).Draw(rt, "slot")]
				predict := rapid.IntRange(0, 300).Draw(rt, "predict")
				end := w.tier.Unknown()
				done := beside(func() {
					defer end(true)
					s.complete(w.engine, context.Background(), tokens, predict)
				})
				w.idle()
				<-done
			case "refuse":
				w.engine.refuseNext(rapid.SampledFrom([]string{"/slots", "/slots/0"}).Draw(rt, "path"), 1)
			case "idle":
				w.idle()
			case "memory":
				w.available = rapid.SampledFrom([]uint64{1 << 30, 100}).Draw(rt, "available")
			case "restart":
				w.tier.Flush(context.Background())
				w.start(slots, 256)
				if len(texts) > 0 && rapid.Bool().Draw(rt, "expects") {
					w.tier.Expect(rapid.SampledFrom(texts).Draw(rt, "expected"))
				}
			case "together":
				var all []chan struct{}
				w.engine.whim = whims(rapid.IntRange(-1, 2).Draw(rt, "whim"))
				for i := range 4 {
					tokens := draw(rt, &texts)
					all = append(all, beside(func() {
						if i < 2 {
							w.ask(ask(tokens), 3)
						} else {
							w.float(loose(tokens), 3)
						}
					}))
				}
				for _, done := range all {
					<-done
				}
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

// giveUp sends a prompt whose client goes away; the engine goes on for a while, in which something
// else is done.
func (w *world) giveUp(rt *rapid.T, tokens []int32, meanwhile func()) {
	ctx, cancel := context.WithCancel(context.Background())
	turn, err := w.tier.Begin(ctx, Request{Tokens: tokens, Slot: -1, Cancel: cancel})
	require.NoError(rt, err)
	w.engine.late = rapid.IntRange(0, 100).Draw(rt, "late")
	cancel()
	done := beside(func() { w.engine.slots[turn.Slot()].complete(w.engine, ctx, tokens, 1000) })
	turn.End(nil)
	meanwhile()
	<-done
}

// whims has the engine choose one of the free slots, whatever they hold; a negative number has none.
func whims(n int) func(free []*fakeSlot) *fakeSlot {
	if n < 0 {
		return nil
	}
	return func(free []*fakeSlot) *fakeSlot { return free[n%len(free)] }
}

// gone sends a prompt for which the engine chooses the slot, and whose client goes away.
func (w *world) gone(r Request) {
	ctx, cancel := context.WithCancel(context.Background())
	r.Cancel = cancel
	turn, err := w.tier.Begin(ctx, r)
	cancel()
	if errors.Is(err, ErrTaken) {
		w.passes(r, 3)
		return
	}
	require.NoError(w.t, err)
	done := beside(func() { w.engine.choose(r.Tokens).run(w.engine, ctx, r.Tokens, 1000) })
	turn.End(nil)
	w.idle()
	<-done
}
