package guard

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// Graves does as the tier below; without a list there, it does nothing.
func (t *Tier) Graves(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	yard, ok := t.Inner.(tier.Graveyard)
	if !ok {
		return nil, nil
	}
	if change == nil {
		return do(ctx, t, t.Transfer, t.StepIn, nil, func(ctx context.Context) ([]byte, error) {
			return yard.Graves(ctx, nil)
		})
	}
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) ([]byte, error) {
		return yard.Graves(ctx, change)
	})
}
