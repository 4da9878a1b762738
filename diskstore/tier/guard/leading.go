package guard

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// leadingBatch is the number of names looked up in one operation: the results up to the
	// last whole batch survive a timeout.
	leadingBatch = 16

	// leadingAtOnce is the number of batches looked up at the same time. A worker is left to
	// other look-ups.
	leadingAtOnce = lookupWorkers - 1
)

// Leading looks up one batch of names first, and more at the same time as long as all are
// found. The time limit holds for each round: a look-up that finds much may take longer.
func (t *Tier) Leading(ctx context.Context, names []pagefile.Name) (infos []tier.Info, err error) {
	for batches := 1; len(names) > 0 && err == nil; batches = min(2*batches, leadingAtOnce) {
		round := names[:min(len(names), batches*leadingBatch)]
		var some []tier.Info
		some, err = t.leadingRound(ctx, round)
		infos = append(infos, some...)
		if len(some) < len(round) {
			break
		}
		names = names[len(round):]
	}
	return infos, err
}

// leadingRound looks up all names at the same time, in batches. A batch that is not wholly
// found ends those after it. Those have twice the time, so that a tier that hangs fails once.
func (t *Tier) leadingRound(ctx context.Context, names []pagefile.Name) ([]tier.Info, error) {
	var running []chan outcome[[]tier.Info]
	for limit, rest := t.LookupIn, names; len(rest) > 0; limit = 2 * t.LookupIn {
		batch := rest[:min(len(rest), leadingBatch)]
		rest = rest[len(batch):]
		found := make(chan outcome[[]tier.Info], 1)
		running = append(running, found)
		mine := ctx
		later, end := context.WithCancel(ctx)
		defer end()
		go func() {
			some, err := t.leadingBatch(mine, limit, batch)
			if len(some) < len(batch) {
				end()
			}
			found <- outcome[[]tier.Info]{some, err}
		}()
		ctx = later
	}
	var infos []tier.Info
	var err error
	for at, found := range running {
		out := <-found // also after a failure, so that no goroutine stays
		if err == nil && len(infos) == at*leadingBatch {
			infos, err = append(infos, out.v...), out.err
		}
	}
	return infos, err
}

// leadingBatch looks up names in one operation.
func (t *Tier) leadingBatch(ctx context.Context, limit time.Duration, names []pagefile.Name) ([]tier.Info, error) {
	return do(ctx, t, t.Lookup, limit, nil, func(ctx context.Context) ([]tier.Info, error) {
		found, err := t.Inner.Leading(ctx, names)
		found, wrong := inOrder(found, names)
		if err == nil {
			err = wrong
		}
		return found, err
	})
}
