package llamatier

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/telemetry"
)

// errDeaf reports a question that is not asked.
var errDeaf = errors.New(unanswered)

// slotsNow asks the engine for its slots.
func (t *Tier) slotsNow(ctx context.Context) ([]Slot, error) {
	var slots []Slot
	err := t.question(ctx, func(ctx context.Context) (err error) {
		slots, err = t.opt.Engine.Slots(ctx)
		return err
	})
	return slots, err
}

// generatedNow asks the engine for bounds of Engine.Generated.
func (t *Tier) generatedNow(ctx context.Context) (least, most int, err error) {
	err = t.question(ctx, func(ctx context.Context) (err error) {
		least, most, err = t.opt.Engine.Generated(ctx)
		return err
	})
	return least, most, err
}

// question asks the engine something and waits for the answer, at most patience.answer. An engine
// that does not answer turns the Tier off, and is asked nothing any more.
func (t *Tier) question(ctx context.Context, ask func(ctx context.Context) error) error {
	if t.deaf.Load() {
		return errDeaf
	}
	limited, cancel := context.WithTimeout(ctx, t.patience.answer)
	defer cancel()
	err := ask(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		t.deaf.Store(true)
		t.Off(telemetry.ObstacleEngine, unanswered)
	}
	return err
}
