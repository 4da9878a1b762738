package guard

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Each describes those of names that have a file; the Info of a name without one is zero. Names
// are looked up in batches of leadingBatch, the first one alone: a tier that hangs fails once. The
// others are looked up at the same time. With an error, Each returns the files found besides.
func (t *Tier) Each(ctx context.Context, names []pagefile.Name) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	first := min(len(names), leadingBatch)
	if err := t.eachBatch(ctx, names[:first], infos[:first]); err != nil {
		return infos, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(leadingAtOnce)
	for at := first; at < len(names); at += leadingBatch {
		end := min(len(names), at+leadingBatch)
		group.Go(func() error { return t.eachBatch(ctx, names[at:end], infos[at:end]) })
	}
	return infos, group.Wait()
}

// eachBatch describes names in one operation, into infos.
func (t *Tier) eachBatch(ctx context.Context, names []pagefile.Name, infos []tier.Info) error {
	if len(names) == 0 {
		return nil
	}
	found, err := do(ctx, t, t.Lookup, t.LookupIn, nil, func(ctx context.Context) ([]tier.Info, error) {
		found := make([]tier.Info, len(names))
		for i, name := range names {
			info, err := t.Inner.Stat(ctx, name)
			if err == nil {
				info, err = describe(info, name)
			}
			if err != nil && !errors.Is(err, tier.ErrNotFound) {
				return found, err
			}
			if err == nil {
				found[i] = info
			}
		}
		return found, nil
	})
	copy(infos, found)
	return err
}
