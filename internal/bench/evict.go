package main

import (
	"context"

	"github.com/kvtier/kvtier/internal/bench/evict"
)

// measureEvict replays a trace on stores of several sizes, in virtual time.
func measureEvict(ctx context.Context, r *rig) (any, error) {
	return evict.Measure(ctx, r.Steps, r.trace, r.quick)
}
