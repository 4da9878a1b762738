package llamatier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// Cause says why a slot is not stored, in a line of the log.
type Cause string

// The causes. Those that pass by themselves are of one save; the others come again with each save of
// the slot, and CauseFormat with each save of the server.
const (
	CauseFormat     Cause = "unknown_format" // llama-server's files have a form that is not known
	CauseRefused    Cause = "save_refused"   // llama-server answers a save with an error
	CauseNoRoom     Cause = "no_room"        // neither the memory nor the disk has room for a file
	CauseDisk       Cause = "disk"           // the disk fails
	CauseHung       Cause = "disk_hangs"
	CauseShifted    Cause = "context_shifted" // rows may be at other positions than their tokens
	CauseUntrusted  Cause = "untrusted_rows"  // rows may be those of a request that must not be stored
	CauseBusy       Cause = "busy"            // a request runs in the slot, or did until the save was over
	CauseUnanswered Cause = "unanswered"      // llama-server has not answered a question
	CauseEmpty      Cause = "empty"           // llama-server has emptied the slot, as it does where it needs room
)

// NotStoredError says why a slot is not stored.
type NotStoredError struct {
	Cause Cause
	Err   error // in words
}

// Error implements error.
func (e *NotStoredError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NotStoredError) Unwrap() error { return e.Err }

func because(c Cause, format string, args ...any) error {
	return &NotStoredError{c, fmt.Errorf(format, args...)}
}

var errDeaf = errors.New(unanswered)

const unanswered = "llama-server does not answer"

// CauseOf finds the cause in an error of a save.
func CauseOf(err error) Cause {
	var known *NotStoredError
	switch {
	case errors.As(err, &known):
		return known.Cause
	case errors.Is(err, llamastate.ErrUnknown):
		return CauseFormat
	case errors.Is(err, slotfile.ErrNoRoom):
		return CauseNoRoom
	case errors.Is(err, steady.ErrHung):
		return CauseHung
	case errors.Is(err, errRefused):
		return CauseRefused
	case errors.Is(err, errDeaf):
		return CauseUnanswered
	}
	return CauseDisk
}

// obstacles tells people why slots are not stored, and knows whether any is.
type obstacles struct {
	watch *unstored.Watch
	log   *slog.Logger
	off   atomic.Bool // nothing is restored or stored any more
}

func (o *obstacles) turnOff(cause telemetry.Obstacle, why string) {
	if !o.off.Swap(true) {
		o.watch.Off(slog.LevelWarn, cause, errors.New(why))
	}
}

// told is an error of the store, which tells of it by itself.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

// notStored notes that a slot that had to be saved is not stored.
func (o *obstacles) notStored(slot int, err error) {
	cause := CauseOf(err)
	o.log.Debug("kv tier: slot not stored", "slot", slot, "cause", cause, "error", err)
	if errors.As(err, new(told)) || errors.Is(err, context.Canceled) {
		return
	}
	switch cause {
	case CauseShifted, CauseUntrusted, CauseBusy: // on purpose, or for the moment
	case CauseFormat:
		o.watch.Lost(telemetry.ObstacleSlotFile, err)
	case CauseNoRoom:
		o.watch.Lost(telemetry.ObstacleFull, err)
	case CauseHung:
		o.watch.Lost(telemetry.ObstacleHung, err)
	default:
		o.watch.Doubt(telemetry.ObstacleSlot, err)
	}
}
