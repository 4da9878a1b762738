package llamatier

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
)

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
