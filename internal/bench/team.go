package main

import (
	"context"

	"github.com/kvtier/kvtier/internal/bench/team"
)

// measureTeam simulates servers that share pages through an engine, in virtual time.
func measureTeam(ctx context.Context, r *rig) (any, error) {
	return team.Measure(ctx, r.Steps, r.quick)
}
