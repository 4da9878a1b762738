package llamatier

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// obstacles tells people why slots are not stored, and knows whether any is.
type obstacles struct {
	watch *unstored.Watch
	log   *slog.Logger
	off   atomic.Bool // nothing is restored or stored any more
}

// turnOff ends storing and restoring.
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
	case CauseShifted, CauseUntrusted, CauseBusy, CauseEmpty: // on purpose, or for the moment
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
