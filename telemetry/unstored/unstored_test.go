package unstored

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// watched is a Watch with a clock and a log.
type watched struct {
	*Watch
	lines strings.Builder
	meter telemetry.Meter
	at    time.Time
}

func newWatched() *watched {
	w := &watched{at: time.Unix(1e9, 0)}
	w.Watch = New(slog.New(slog.NewTextHandler(&w.lines, nil)), &w.meter)
	w.now = func() time.Time { return w.at }
	return w
}

func (w *watched) state() *telemetry.Unstored {
	var r telemetry.Report
	w.Fill(&r)
	return r.Unstored
}

// said counts the lines with a text.
func (w *watched) said(text string) int { return strings.Count(w.lines.String(), text) }

const notStored, storedAgain = "conversations are not stored", "conversations are stored again"

// TestEveryObstacleIsTold: one line with cause and remedy, a state and a count for each cause, and
// one line when it is over.
func TestEveryObstacleIsTold(t *testing.T) {
	for _, e := range telemetry.Obstacles {
		c := e.Cause
		w := newWatched()
		require.Nil(t, w.state())
		w.Stored()
		require.Empty(t, w.lines.String())
		for range 5 {
			w.Lost(c, errors.New("the reason"))
			w.at = w.at.Add(time.Hour)
		}
		require.Equal(t, 1, w.said("level=WARN"), "one line")
		for _, part := range []string{notStored, "cause=" + string(c), `reason="the reason"`, "remedy="} {
			require.Contains(t, w.lines.String(), part)
		}
		require.Equal(t, &telemetry.Unstored{Cause: c, Detail: "the reason", Since: time.Unix(1e9, 0)}, w.state())
		totals, _ := w.meter.Read()
		require.Equal(t, map[string]float64{`ollama_kv_not_stored_total{cause="` + string(c) + `"}`: 5}, totals)
		w.Stored()
		w.Stored()
		require.Nil(t, w.state())
		require.Equal(t, 1, w.said(storedAgain))
	}
}

// Storing that fails and works in turn fills no log.
func TestFlappingIsTold(t *testing.T) {
	w := newWatched()
	for range 60 {
		w.Lost(telemetry.ObstacleFull, errors.New("full"))
		require.NotNil(t, w.state())
		w.Stored()
		require.Nil(t, w.state())
		w.at = w.at.Add(20 * time.Second)
	}
	require.Equal(t, 2, w.said(notStored), "twice in 20 minutes")
	require.Equal(t, 2, w.said(storedAgain), "one for each")
}

// A failure that comes back soon after "stored again", and stays, is told in the end.
func TestAFailureThatStaysIsTold(t *testing.T) {
	w := newWatched()
	w.Lost(telemetry.ObstacleFull, errors.New("full"))
	w.at = w.at.Add(time.Minute)
	w.Stored()
	for range 60 {
		w.at = w.at.Add(time.Minute)
		w.Lost(telemetry.ObstacleFull, errors.New("full"))
	}
	require.Equal(t, 2, w.said(notStored))
	require.Less(t, strings.LastIndex(w.lines.String(), storedAgain), strings.LastIndex(w.lines.String(), notStored))
}

// Another cause has a line of its own.
func TestAnotherCauseIsTold(t *testing.T) {
	w := newWatched()
	for range 3 {
		w.Lost(telemetry.ObstacleFull, errors.New("full"))
		w.Lost(telemetry.ObstacleReadOnly, errors.New("read-only"))
	}
	require.Equal(t, 2, w.said(notStored))
	require.Equal(t, telemetry.ObstacleReadOnly, w.state().Cause)
}

// A slot that is not saved once is nothing, and one that is never saved is told.
func TestDoubts(t *testing.T) {
	w := newWatched()
	for range 5 {
		w.Doubt(telemetry.ObstacleSlot, errors.New("it held 5 tokens"))
		w.Doubt(telemetry.ObstacleSlot, errors.New("it held 6 tokens"))
		w.Sure()
	}
	require.Nil(t, w.state())
	for range doubtsMax {
		w.Doubt(telemetry.ObstacleSlot, errors.New("it held 7 tokens"))
	}
	require.Equal(t, telemetry.ObstacleSlot, w.state().Cause)
	require.Equal(t, 1, w.said("it held 7 tokens"))
}

// A model that is off stays off.
func TestOff(t *testing.T) {
	w := newWatched()
	w.Off(slog.LevelWarn, telemetry.ObstacleModel, errors.New("no such model"), "model", "m.gguf")
	w.Off(slog.LevelWarn, telemetry.ObstacleModel, errors.New("no such model"))
	w.Stored()
	w.Lost(telemetry.ObstacleFull, errors.New("full"))
	require.Equal(t, telemetry.ObstacleModel, w.state().Cause)
	require.Equal(t, 1, strings.Count(w.lines.String(), "\n"))
	require.Contains(t, w.lines.String(), `msg="kv tier: off for this model" model=m.gguf cause=unsupported_model reason="no such model" remedy=`)
}

// Details of any error are within the bounds of a report.
func TestDetailIsBounded(t *testing.T) {
	w := newWatched()
	w.Lost(telemetry.ObstacleOther, errors.New("a\nb\x1b[2J\xff"+strings.Repeat("ä", telemetry.NameBytesMax)))
	require.LessOrEqual(t, len(w.state().Detail), telemetry.NameBytesMax)
	require.Regexp(t, `^a b \[2J\?ä+$`, w.state().Detail)
}
