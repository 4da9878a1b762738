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

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

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
		"slot files of another llama-server": {func(w *world) {
			shape := *fakeShape
			shape.Caches = slices.Clone(shape.Caches)
			shape.Caches[0].Layers = 3
			for i := range shape.Caches[0].Tensors {
				shape.Caches[0].Tensors[i] = append(slices.Clone(shape.Caches[0].Tensors[i]), llamastate.Tensor{Type: 1, Row: 32})
			}
			w.engine.shape = &shape
		}, telemetry.ObstacleSlotFile, 1},
		"slots that are not saved":        {func(w *world) { w.engine.refuseNext("/slots/0?action=save", 9) }, telemetry.ObstacleSlot, 3},
		"slots that llama-server empties": {func(*world) {}, telemetry.ObstacleSlot, 3},
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
