// Package unstored keeps one promise for both engines: where tiering is on and K/V is not stored,
// people are told. The first time that something should have been stored and was not, one line in
// the log has the cause and the remedy; reports then carry the cause to kvtier ps, why, top and
// doctor, to the web page and to a counter, until something is stored again, which is one line, too.
//
// Prompts that are not stored on purpose (kv_store: false, text behind a shift) are none of this:
// package why explains their misses.
package unstored

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/kvtier/kvtier/telemetry"
)

const (
	// tellEvery is the least time between two lines about one cause: storing may fail and work
	// again with each page.
	tellEvery = 10 * time.Minute
	// doubtsMax is the number of doubts in a row that are an obstacle.
	doubtsMax = 3
)

// Series is the counter of a cause.
func Series(c telemetry.Obstacle) string {
	return telemetry.Series("ollama_kv_not_stored_total", "cause", string(c))
}

// Watch tells whether the K/V of one loaded model is stored. All methods may be called from several
// goroutines.
type Watch struct {
	log   *slog.Logger
	meter *telemetry.Meter
	now   func() time.Time

	mu     sync.Mutex
	state  *telemetry.Unstored // nil while K/V is stored, or nothing had to be
	off    bool                // for good
	loud   bool                // the log has a line of state
	quiet  bool                // the log has none of its cause and reason
	told   map[telemetry.Obstacle]time.Time
	doubts int // in a row
}

// New returns a Watch that logs to log and counts in meter.
func New(log *slog.Logger, meter *telemetry.Meter) *Watch {
	return &Watch{log: log, meter: meter, now: time.Now, told: make(map[telemetry.Obstacle]time.Time)}
}

// Lost notes that something that should have been stored was not.
func (w *Watch) Lost(cause telemetry.Obstacle, reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meter.Add(Series(cause), 1)
	if w.off {
		return
	}
	if w.setLocked(cause, reason) {
		w.quiet = true
	}
	now := w.now()
	if !w.quiet {
		return
	}
	if last, told := w.told[cause]; told && now.Sub(last) < tellEvery {
		return
	}
	w.told[cause], w.loud, w.quiet = now, true, false
	w.log.Warn("kv tier: conversations are not stored", told(cause, reason)...)
}

// Doubt notes that something that should have been stored was not, for a cause that may have passed
// by the next time. Several doubts in a row are an obstacle.
func (w *Watch) Doubt(cause telemetry.Obstacle, reason error) {
	w.mu.Lock()
	w.doubts++
	often := w.doubts >= doubtsMax
	w.mu.Unlock()
	if often {
		w.Lost(cause, reason)
	}
}

// Sure notes that a slot that should have been stored is.
func (w *Watch) Sure() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubts = 0
}

// Stored notes that something was stored.
func (w *Watch) Stored() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubts = 0
	if w.off || w.state == nil {
		return
	}
	if w.loud {
		w.log.Info("kv tier: conversations are stored again", "cause", w.state.Cause, "after", w.now().Sub(w.state.Since).Round(time.Millisecond))
	}
	w.state, w.loud = nil, false
}

// Off notes, in one line of a level, that nothing of the model is stored or restored while it is
// loaded. attrs are further attributes of the line.
func (w *Watch) Off(level slog.Level, cause telemetry.Obstacle, reason error, attrs ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off {
		return
	}
	w.meter.Add(Series(cause), 1)
	w.setLocked(cause, reason)
	w.off = true
	w.log.Log(context.Background(), level, "kv tier: off for this model", append(attrs, told(cause, reason)...)...)
}

// setLocked makes a cause the state, and reports whether it was another one.
func (w *Watch) setLocked(cause telemetry.Obstacle, reason error) bool {
	if w.state != nil && w.state.Cause == cause {
		return false
	}
	w.state = &telemetry.Unstored{Cause: cause, Detail: detail(reason), Since: w.now()}
	return true
}

// told are the attributes of a line.
func told(cause telemetry.Obstacle, reason error) []any {
	return []any{"cause", cause, "reason", fmt.Sprint(reason), "remedy", cause.Explain().Remedy}
}

// detail is the text of an error within the bounds of a report.
func detail(reason error) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(fmt.Sprint(reason), "?"))
	return strings.ToValidUTF8(text[:min(len(text), telemetry.NameBytesMax)], "")
}

// Fill adds the state to a report.
func (w *Watch) Fill(r *telemetry.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Unstored = w.state // replaced, never changed
}
