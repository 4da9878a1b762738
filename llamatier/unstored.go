package llamatier

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/telemetry"
)

// told is an error of the store, which tells of it by itself.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

// notStored notes that a slot that had to be saved is not stored.
func (t *Tier) notStored(s *slot, err error) {
	cause := CauseOf(err)
	t.opt.Log.Debug("kv tier: slot not stored", "slot", s.id, "cause", cause, "error", err)
	if errors.As(err, new(told)) || errors.Is(err, context.Canceled) {
		return
	}
	switch w := t.opt.Unstored; cause {
	case CauseShifted, CauseUntrusted, CauseBusy, CauseEmpty: // on purpose, or for the moment
	case CauseFormat:
		w.Lost(telemetry.ObstacleSlotFile, err)
	case CauseNoRoom:
		w.Lost(telemetry.ObstacleFull, err)
	case CauseHung:
		w.Lost(telemetry.ObstacleHung, err)
	default:
		w.Doubt(telemetry.ObstacleSlot, err)
	}
}
