package inspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// Roots are the directories of a store's tiers, with the pages of all fingerprints below them.
// Servers may use the directories at the same time.
type Roots struct {
	Local  *dir.Tier
	Remote *dir.Tier    // nil without a remote tier
	Log    *slog.Logger // nil discards
}

// tierRoot is one tier, with its name.
type tierRoot struct {
	id string // Local or Remote
	t  *dir.Tier
}

// tiers returns the tiers, the local one first.
func (r *Roots) tiers() []tierRoot {
	tiers := []tierRoot{{tier.Local, r.Local}}
	if r.Remote != nil {
		tiers = append(tiers, tierRoot{tier.Remote, r.Remote})
	}
	return tiers
}

// eachRoot calls look for every tier, and continues when a tier does not answer. The error of
// such a tier is returned as silent, any other error as err.
func (r *Roots) eachRoot(look func(tierRoot) error) (silent, err error) {
	for _, root := range r.tiers() {
		err := look(root)
		if tier.NoAnswer(err) {
			silent = errors.Join(silent, err)
		} else if err != nil {
			return silent, err
		}
	}
	return silent, nil
}

// goingOn logs that the pages of a tier were not read.
func (r *Roots) goingOn(silent error) {
	if silent != nil && r.Log != nil {
		r.Log.Warn("kv tier does not answer, its pages are not looked at", "error", silent)
	}
}

// Check checks every file below the roots, and reads pages from beginning to end,
// decompressing compressed sections. Servers may use the roots meanwhile. Check returns one
// result for each tier, and ctx's error.
func (r *Roots) Check(ctx context.Context, opt CheckOptions) ([]TierCheck, error) {
	if math.IsNaN(opt.Sample) || opt.Sample < 0 || opt.Sample > 1 {
		return nil, fmt.Errorf("check: sample is %v, want 0 to 1: %w", opt.Sample, ErrArguments)
	}
	roots := r.tiers()
	var checks []TierCheck
	for i, root := range roots {
		var other *dir.Tier
		if len(roots) > 1 {
			other = roots[1-i].t
		}
		check, err := checkTier(ctx, root.t, other, root.id, opt)
		checks = append(checks, check)
		if err != nil {
			return checks, err
		}
	}
	return checks, nil
}
