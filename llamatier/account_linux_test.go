package llamatier

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// latest is the account of the latest prompt, without times, its number and its miss.
func (w *world) latest() telemetry.Prompt {
	w.tier.why.Wait(time.Minute)
	_, prompts := w.meter.Read()
	p := prompts[len(prompts)-1]
	require.False(w.t, p.At.IsZero())
	p.Miss = nil
	p.At, p.Seq, p.Restore, p.Took, p.Saved = telemetry.Prompt{}.At, 0, 0, 0, 0
	return p
}

// TestAccounts: each token of a prompt is counted where it came from.
func TestAccounts(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 200, Computed: 200}, w.latest())

	w.ask(ask(prompt(1, 300)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 300, Slot: 200, Computed: 100}, w.latest())

	w.killed()
	restored := w.ask(ask(prompt(1, 350)), 5)
	require.GreaterOrEqual(t, restored, 288)
	require.Equal(t, telemetry.Prompt{Tokens: 350, Local: restored, Computed: 350 - restored}, w.latest())

	w.ask(private(prompt(2, 90)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 90, Computed: 90, Private: true}, w.latest())

	w.tier.why.Wait(time.Minute)
	totals, _ := w.meter.Read()
	require.Equal(t, 4.0, totals["ollama_kv_prompts_total"])
	require.Equal(t, 1.0, totals["ollama_kv_restores_total"])
	require.Equal(t, float64(restored), totals[`ollama_kv_prompt_tokens_total{source="local"}`])
	require.Positive(t, totals[`ollama_kv_sealed_pages_total{kind="page"}`])
}

// TestAnAccountWithoutTheAnswer: a client went away before the engine was heard to the end.
func TestAnAccountWithoutTheAnswer(t *testing.T) {
	w := stored(t)
	turn := w.begin(ask(prompt(1, 300)))
	turn.await()
	restored := turn.restored.tokens
	require.Positive(t, restored)
	turn.End(nil)
	w.accounted()
	require.Equal(t, telemetry.Prompt{Tokens: 300, Local: restored, Computed: 300 - restored}, w.latest())
	slots := w.tier.Slots()
	require.Len(t, slots, 1)
	require.Equal(t, restored, slots[0].Restored)
	require.False(t, slots[0].LastRestore.IsZero())
	require.False(t, slots[0].Busy)
}

// TestTheEngineComputesRestoredTokensAgain, as it may, and they count once. Nothing is saved at a guess:
// before a batch was measured, the cost of computing is not known.
func TestTheEngineComputesRestoredTokensAgain(t *testing.T) {
	for _, again := range []bool{true, false} {
		w := stored(t)
		turn := w.begin(ask(prompt(1, 300)))
		turn.await()
		require.Positive(t, turn.restored.tokens)
		require.False(t, w.rates.Known())
		cached := turn.restored.tokens
		if again {
			cached = 0
		}
		turn.End(&Answer{Cached: cached, Processed: 300 - cached})
		w.accounted()
		require.Equal(t, telemetry.Prompt{Tokens: 300, Local: cached, Computed: 300 - cached}, w.latest())
		totals, _ := w.meter.Read()
		require.Zero(t, totals["ollama_kv_saved_seconds_total"])
	}
}

// missed is the miss of the latest prompt, once it is explained.
func (w *world) missed() telemetry.Miss {
	w.tier.why.Wait(time.Minute)
	_, prompts := w.meter.Read()
	miss := prompts[len(prompts)-1].Miss
	require.NotNil(w.t, miss, "%+v", prompts[len(prompts)-1])
	return *miss
}

// TestCausesOfMisses plays causes one after the other.
func TestCausesOfMisses(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.CauseNeverSeen, w.missed().Cause)

	parts := append(slices.Clone(prompt(1, 120)), prompt(2, 100)...)
	w.ask(ask(parts), 5)
	miss := w.missed()
	require.Equal(t, telemetry.CauseDiffers, miss.Cause)
	require.Equal(t, 120, miss.At)
	require.NotNil(t, miss.Words)

	w.ask(private(prompt(3, 200)), 5)
	require.Nil(t, w.missed().Words)
	w.ask(ask(prompt(4, 100)), 5)
	w.ask(ask(prompt(3, 200)), 5)
	miss = w.missed()
	require.Equal(t, telemetry.CausePrivate, miss.Cause)
	require.Nil(t, miss.Words)

	w.killed()
	for _, path := range w.pageFiles() {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		data[len(data)/2] ^= 1
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.CauseDamaged, w.missed().Cause)
}

// TestAPromptBehindAnImageIsExplained: the engine holds more of the prompt than the tokens before the
// image, of which no page has a key.
func TestAPromptBehindAnImageIsExplained(t *testing.T) {
	w := newWorld(t, 1, 1000)
	request := Request{Tokens: slices.Clip(prompt(1, 20)), Rest: prompt(2, 300), Slot: -1}
	for _, cached := range []int{20, 320} { // the second as in the next turn of a chat
		turn := w.begin(request)
		turn.End(&Answer{Cached: cached, Processed: 360 - cached})
		require.Equal(t, telemetry.CauseImage, w.missed().Cause)
	}
}

// TestPromptsOfTwoSlotsAreExplained: while one is looked up, rows of the other slot are replaced.
func TestPromptsOfTwoSlotsAreExplained(t *testing.T) {
	w := newWorld(t, 2, 1000)
	for seed := range 4 {
		w.ask(ask(prompt(seed, 200)), 2)
	}
	w.killed()
	play := func(slot int) {
		for i := range 20 {
			w.begin(Request{Tokens: prompt((i+2*slot)%4, 250), Slot: slot}).End(nil)
		}
	}
	other := beside(func() { play(1) })
	play(0)
	<-other
	w.tier.why.Wait(time.Minute)
	totals, _ := w.meter.Read()
	require.Equal(t, 44.0, totals["ollama_kv_prompts_total"])
}

// TestAPromptThatTheEngineHasNotGot computes nothing that others could wait for.
func TestAPromptThatTheEngineHasNotGot(t *testing.T) {
	w := newWorld(t, 1, 1000)
	turn := w.begin(ask(prompt(1, 300)))
	turn.Drop()
	w.ask(ask(prompt(1, 300)), 1)
	require.Equal(t, telemetry.CauseNeverSeen, w.missed().Cause)
}

// watch has a world's Tier tell a Watch, whose log it returns.
func (w *world) watch() *strings.Builder {
	lines := new(strings.Builder)
	w.told = unstored.New(slog.New(slog.NewTextHandler(lines, nil)), nil)
	w.restart(func(o *Options) { o.Unstored = w.told })
	return lines
}

// unstored is the cause that the Tier reports.
func (w *world) unstored() telemetry.Obstacle {
	var r telemetry.Report
	if w.told.Fill(&r); r.Unstored == nil {
		return ""
	}
	return r.Unstored.Cause
}

// TestSlotsThatAreNotStoredAreTold: after the first prompt whose slot should have been stored and
// was not, one line has the cause, and the report has it.
func TestSlotsThatAreNotStoredAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		fault   func(*world)
		want    telemetry.Obstacle
		prompts int // until it is told
	}{
		"slot files of another llama-server": {func(w *world) { w.engine.shape = hybridShape }, telemetry.ObstacleSlotFile, 1},
		"slots that are not saved":           {func(w *world) { w.engine.refuseNext("/slots/0?action=save", 9) }, telemetry.ObstacleSlot, 3},
		"slots that llama-server empties":    {func(*world) {}, telemetry.ObstacleSlot, 3},
		"requests of others": {func(w *world) {
			w.tier.patience.busy = 0
			w.tier.Unknown()
		}, telemetry.ObstacleSlot, 4},
		"no room for a file": {func(w *world) { w.available, w.free = 0, 0 }, telemetry.ObstacleFull, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1000)
			lines := w.watch()
			test.fault(w)
			for i := range 5 {
				if i == test.prompts {
					require.Equal(t, test.want, w.unstored(), "after %d prompts", i)
				}
				w.ask(ask(prompt(1+i, 100)), 3)
				if name == "slots that llama-server empties" {
					w.engine.slots[0].tokens, w.engine.slots[0].rows = nil, nil
				}
				w.idle()
			}
			require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
			require.Contains(t, lines.String(), "cause="+string(test.want)+" ")
		})
	}
}

// Slots that are not stored on purpose, and errors that the store has told, are not told again.
func TestSlotsThatAreNotToldAgain(t *testing.T) {
	w := newWorld(t, 1, 1000)
	lines := w.watch()
	for range 5 {
		w.tier.obstacles.notStored(0, because(CauseUntrusted, "it is private"))
		w.tier.obstacles.notStored(0, told{syscall.ENOSPC})
	}
	require.Empty(t, lines.String())
	w.tier.obstacles.notStored(0, steady.ErrHung)
	require.Equal(t, telemetry.ObstacleHung, w.unstored())
}

// TestATierThatIsOffIsReported, and nothing is stored any more.
func TestATierThatIsOffIsReported(t *testing.T) {
	w := newWorld(t, 1, 1000)
	lines := w.watch()
	w.tier.Off(telemetry.ObstacleEngine, unanswered)
	w.tier.Off(telemetry.ObstacleEngine, unanswered)
	require.Equal(t, telemetry.ObstacleEngine, w.unstored())
	require.Equal(t, 1, strings.Count(lines.String(), "kv tier: off for this model"))
	w.askAndIdle(ask(prompt(1, 100)), 3)
	w.tier.Flush(t.Context())
	require.Empty(t, w.found(prompt(1, 100)))
}

// newer has llama-server append a section to the next file of slot 0, as a newer one does.
func (w *world) newer(section string) {
	w.engine.onLeave("/slots/0?action=save", func() {
		paths, err := filepath.Glob(filepath.Join(w.files.Dir(), "*"))
		require.NoError(w.t, err)
		for _, path := range paths {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(w.t, err)
			_, err = f.WriteString(section)
			require.NoError(w.t, errors.Join(err, f.Close()))
		}
	})
}

// TestCauses: the error of a slot that is not stored has a cause.
func TestCauses(t *testing.T) {
	for name, c := range map[string]struct {
		cause Cause
		stage func(w *world)
		says  string
	}{
		"a section that is not known": {CauseFormat, func(w *world) { w.newer("NEXT") }, "4 bytes follow the last cache"},
		"checkpoints of a newer form": {CauseFormat, func(w *world) { w.newer("SCKP\x02\x00\x00\x00") }, "version of the checkpoints"},
		"a save that fails":           {CauseRefused, func(w *world) { w.engine.refuseNext("/slots/0", 1) }, "refuses"},
		"a full machine":              {CauseNoRoom, func(w *world) { w.available, w.free = 1, 0 }, "no room"},
		"a full machine, and a stream": {CauseNoRoom, func(w *world) {
			w.idle()
			w.available, w.free = 1, 0
			w.ask(ask(prompt(1, 300)), 2)
		}, "no room"},
		"a shift":            {CauseShifted, func(w *world) { w.ask(ask(prompt(1, 300)), 1000) }, "shifted"},
		"rows of another":    {CauseUntrusted, func(w *world) { w.tier.table.slots[0].private = true }, "not stored"},
		"a request runs":     {CauseBusy, func(w *world) { w.engine.slots[0].use.Lock(); w.t.(*testing.T).Cleanup(w.engine.slots[0].use.Unlock) }, "runs"},
		"an unknown request": {CauseBusy, func(w *world) { w.tier.Unknown(); w.ask(ask(prompt(1, 210)), 2) }, "nothing is known"},
		"an empty slot":      {CauseEmpty, func(w *world) { w.engine.slots[0].tokens, w.engine.slots[0].rows = nil, nil }, "emptied"},
		"slots are not told": {CauseUnanswered, func(w *world) { w.engine.refuseNext("/slots", 1) }, "look at it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, stream: strings.Contains(name, "stream")}
			var lines bytes.Buffer
			w.change = func(o *Options) {
				o.Log = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			w.start(1, 500)
			w.ask(ask(prompt(1, 200)), 2)
			c.stage(w)
			w.tier.saver.rested.Store(nil)
			w.tier.storing.Wait()
			lines.Reset()
			w.idle()
			require.Contains(t, lines.String(), `msg="kv tier: slot not stored" slot=0 cause=`+string(c.cause)+" ")
			require.Contains(t, lines.String(), c.says)
		})
	}
	require.Equal(t, CauseFormat, CauseOf(llamastate.ErrUnknown))
	require.Equal(t, CauseHung, CauseOf(steady.ErrHung))
	require.Equal(t, CauseDisk, CauseOf(os.ErrPermission))
}
